// docs/reliability.md names the test of each promise, docs/measured/bugs_of_others.md and expert_bugs.md those
// against bugs of other engines, docs/measured/training_checks.md those of long trainings: these tests exist.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/docs/page.h"
#include "tests/where.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;

std::string content_of(const fs::path& file) {
  std::string text;
  for (const std::string& line : lines_of(file)) text += line + "\n";
  return text;
}

/// "Suite", "Test" and "Suite.Test" of every test below a folder of tests.
const std::set<std::string>& names_below(const fs::path& folder) {
  static std::map<fs::path, std::set<std::string>> known;
  if (known.contains(folder)) return known[folder];
  static const std::regex kTest(R"(\bTEST(_F|_P)?\(\s*(\w+),\s*(\w+)\))");
  std::set<std::string>& names = known[folder];
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".cpp" && entry.path().extension() != ".h") continue;
    const std::string text = content_of(entry.path());
    for (std::sregex_iterator test(text.begin(), text.end(), kTest), end; test != end; ++test) {
      names.insert({(*test)[2], (*test)[3], (*test)[2].str() + "." + (*test)[3].str()});
    }
  }
  return names;
}

/// A name that ends in "…" stands for those that begin with it.
bool has(const std::set<std::string>& names, std::string name) {
  static const std::string kMore = "…";
  if (!name.ends_with(kMore)) return names.contains(name);
  name.resize(name.size() - kMore.size());
  const auto first = names.lower_bound(name);
  return first != names.end() && first->starts_with(name);
}

/// The last cells of all rows of tables whose last column is "test".
std::vector<std::string> test_cells(const std::string& page) {
  std::vector<std::string> cells;
  bool of_tests = false;
  for (const std::string& line : lines_of(fs::path(SHERD_SOURCE_DIR) / page)) {
    if (!line.starts_with("|")) {
      of_tests = false;
    } else if (line.ends_with("| test |")) {
      of_tests = true;
    } else if (of_tests && !line.starts_with("|---")) {
      const std::size_t end = line.rfind('|'), begin = line.rfind('|', end - 1);
      cells.push_back(line.substr(begin + 1, end - begin - 1));
    }
  }
  return cells;
}

/// How many tests the page names, each of which must exist.
int expect_tests_of(const char* page) {
  static const std::regex kWord(R"(`([a-z_/]+)`|([A-Z]\w+(\.[A-Z]\w+)?(…)?))");
  const fs::path tests = fs::path(SHERD_SOURCE_DIR) / "tests";
  int num_names = 0;
  for (const std::string& cell : test_cells(page)) {
    fs::path folder = tests;  // of the names that follow
    bool named = false;
    for (std::sregex_iterator word(cell.begin(), cell.end(), kWord), end; word != end; ++word) {
      if ((*word)[1].matched) {
        folder = tests / (*word)[1].str();
        EXPECT_TRUE(fs::is_directory(folder)) << cell;
        continue;
      }
      EXPECT_TRUE(has(names_below(folder), (*word)[2])) << (*word)[2] << " in " << cell;
      named = true;
      ++num_names;
    }
    EXPECT_TRUE(named) << "no test: " << cell;
  }
  return num_names;
}

TEST(ReliabilityPage, EveryTestThatItNamesExists) {
  EXPECT_GE(expect_tests_of("docs/reliability.md"), 40);
}

TEST(BugsOfOthersPage, EveryTestThatItNamesExists) {
  EXPECT_GE(expect_tests_of("docs/measured/bugs_of_others.md"), 20);
}

TEST(ExpertBugsPage, EveryTestThatItNamesExists) {
  EXPECT_GE(expect_tests_of("docs/measured/expert_bugs.md"), 35);
}

TEST(TrainingChecksPage, EveryTestThatItNamesExists) {
  EXPECT_GE(expect_tests_of("docs/measured/training_checks.md"), 50);
}

}  // namespace
}  // namespace sherd::test
