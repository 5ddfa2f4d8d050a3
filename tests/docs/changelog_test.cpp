// CHANGELOG.md has a heading for each version, the newest first, and it is the program's.
#include <gtest/gtest.h>

#include <array>
#include <regex>
#include <set>

#include "tests/docs/page.h"
#include "tests/support/runs/program.h"
#include "tests/where.h"

namespace sherd::test {
namespace {

using Version = std::array<int, 3>;

// "## Unreleased (1.2.3)" or "## 1.2.3 (2026-11-26)"; only the first may be unreleased.
std::vector<Version> versions_of_changelog() {
  static const std::regex kHeading(
      R"(## (?:Unreleased \((\d+)\.(\d+)\.(\d+)\)|(\d+)\.(\d+)\.(\d+) \(20\d\d-\d\d-\d\d\)))");
  std::vector<Version> versions;
  for (const std::string& line :
       lines_of(std::filesystem::path(SHERD_SOURCE_DIR) / "CHANGELOG.md")) {
    if (!line.starts_with("## ")) continue;
    std::smatch match;
    EXPECT_TRUE(std::regex_match(line, match, kHeading)) << line;
    if (match.empty()) continue;
    const std::size_t at = match[1].matched ? 1 : 4;
    EXPECT_TRUE(at == 4 || versions.empty()) << line << " isn't the first";
    versions.push_back({std::stoi(match[at]), std::stoi(match[at + 1]), std::stoi(match[at + 2])});
  }
  return versions;
}

TEST(Changelog, BeginsWithTheVersionOfTheProgram) {
  const std::vector<Version> versions = versions_of_changelog();
  ASSERT_FALSE(versions.empty());
  const auto [major, minor, patch] = versions[0];
  EXPECT_EQ(run_program(SHERD_PROGRAM, {"--version"}).out, "sherd " + std::to_string(major) + "." +
                                                               std::to_string(minor) + "." +
                                                               std::to_string(patch) + "\n");
}

TEST(Changelog, HasTheNewestVersionFirst) {
  const std::vector<Version> versions = versions_of_changelog();
  for (std::size_t i = 1; i < versions.size(); ++i) EXPECT_LT(versions[i], versions[i - 1]);
}

TEST(Changelog, SortsEachVersionsEntriesByKind) {
  const std::set<std::string> kinds = {"Added",   "Changed", "Deprecated",
                                       "Removed", "Fixed",   "Security"};
  for (const std::string& line :
       lines_of(std::filesystem::path(SHERD_SOURCE_DIR) / "CHANGELOG.md")) {
    if (!line.starts_with("### ")) continue;
    EXPECT_TRUE(kinds.contains(line.substr(4))) << line;
  }
}

}  // namespace
}  // namespace sherd::test
