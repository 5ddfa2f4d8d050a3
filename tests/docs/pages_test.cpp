// What README.md, CONTRIBUTING.md and docs/ look like: links lead somewhere, lines and pages are short,
// each fact has one owner, and words that readers stumbled over don't return.
#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "tests/docs/page.h"
#include "tests/where.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = SHERD_SOURCE_DIR;

/// A line outside of fenced blocks.
struct Line {
  int number = 0;
  std::string text;
};

std::vector<Line> lines_outside_fences(const std::string& page) {
  std::vector<Line> lines;
  bool open = false;
  int number = 0;
  for (const std::string& line : lines_of(kRoot / page)) {
    ++number;
    if (line.starts_with("```")) {
      open = !open;
    } else if (!open) {
      lines.push_back({number, line});
    }
  }
  return lines;
}

std::string where(const std::string& page, const Line& line) {
  return page + ":" + std::to_string(line.number);
}

/// How GitHub names a heading in links.
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == ' ') {
      anchor += '-';
    } else if (std::isalnum(byte) || c == '-' || c == '_' || byte >= 0x80) {
      anchor += static_cast<char>(std::tolower(byte));
    }
  }
  return anchor;
}

std::set<std::string> anchors_of(const std::string& page) {
  std::set<std::string> anchors;
  for (const Line& line : lines_outside_fences(page)) {
    const std::size_t text = line.text.find_first_not_of("# ");
    if (line.text.starts_with("#") && text != std::string::npos) {
      anchors.insert(anchor_of(line.text.substr(text)));
    }
  }
  return anchors;
}

/// Characters, not bytes.
std::int64_t width_of(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

/// Words as `wc -w` counts them.
std::int64_t words_of(const std::string& page) {
  std::ifstream file(kRoot / page);
  return std::distance(std::istream_iterator<std::string>(file), {});
}

/// The page without fences and code, each paragraph, list item and row on one line.
std::vector<Line> sentences_of(const std::string& page) {
  static const std::regex kCode("`[^`]*`");
  std::vector<Line> paragraphs = {{}};
  for (const Line& line : lines_outside_fences(page)) {
    if (line.text.empty() || line.text.starts_with("|") || line.text.starts_with("- ")) {
      paragraphs.push_back({line.number, ""});
    }
    if (paragraphs.back().text.empty()) paragraphs.back().number = line.number;
    paragraphs.back().text += line.text + " ";
  }
  for (Line& paragraph : paragraphs) {
    paragraph.text = std::regex_replace(paragraph.text, kCode, "`");
  }
  return paragraphs;
}

TEST(PagesText, LinksLeadToPagesAndHeadingsThatExist) {
  static const std::regex kLink(R"(\]\(([^)]+)\))");
  for (const std::string& page : all_pages(kRoot)) {
    for (const Line& line : lines_outside_fences(page)) {
      for (std::sregex_iterator at(line.text.begin(), line.text.end(), kLink), end; at != end;
           ++at) {
        const std::string link = (*at)[1];
        if (link.starts_with("http")) continue;
        const std::string file = link.substr(0, link.find('#'));
        const fs::path target =
            file.empty() ? fs::path(page) : (fs::path(page).parent_path() / file);
        const std::string name = target.lexically_normal().generic_string();
        EXPECT_TRUE(fs::exists(kRoot / name)) << where(page, line) << ": " << link;
        if (link.find('#') == std::string::npos || !name.ends_with(".md")) continue;
        EXPECT_TRUE(anchors_of(name).contains(link.substr(link.find('#') + 1)))
            << where(page, line) << ": " << link;
      }
    }
  }
}

TEST(PagesText, AreAllInTheIndex) {
  const auto lines = lines_of(kRoot / "docs/README.md");
  std::string index;
  for (const std::string& line : lines) index += line + "\n";
  for (const std::string& page : pages(kRoot)) {
    if (!page.starts_with("docs/") || page.ends_with("README.md")) continue;
    if (page.starts_with("docs/decisions/")) continue;  // they have an index of their own
    EXPECT_NE(index.find("(" + page.substr(5) + ")"), std::string::npos) << page;
  }
}

TEST(PagesText, OfDecisionsAreAllInTheirIndex) {
  std::string index;
  for (const std::string& line : lines_of(kRoot / "docs/decisions/README.md")) index += line;
  for (const auto& entry : fs::directory_iterator(kRoot / "docs/decisions")) {
    const std::string name = entry.path().filename();
    if (name == "README.md") continue;
    EXPECT_NE(index.find("(" + name + ")"), std::string::npos) << name;
    EXPECT_TRUE(lines_of(entry.path()).at(2).starts_with("Date: 20")) << name;
  }
}

TEST(PagesText, HaveLinesOfAtMostAHundredCharacters) {
  for (const std::string& page : pages(kRoot)) {
    if (page == "docs/recipe.md") continue;  // generated
    for (const Line& line : lines_outside_fences(page)) {
      if (line.text.starts_with("|") || line.text.starts_with("![")) continue;
      EXPECT_LE(width_of(line.text), 100) << where(page, line);
    }
  }
}

// Pages that a new feature brings are listed here: short, each on its own.
const std::set<std::string> kLaterPages = {"docs/clusters.md",
                                           "docs/controls.md",
                                           "docs/experts.md",
                                           "docs/extending.md",
                                           "docs/mixtures.md",
                                           "docs/hooks.md",
                                           "docs/library.md",
                                           "docs/local_updates.md",
                                           "docs/many_cores.md",
                                           "docs/mtp.md",
                                           "docs/offload.md",
                                           "docs/optimizers.md",
                                           "docs/parameter_groups.md",
                                           "docs/parameter_server.md",
                                           "docs/parquet.md",
                                           "docs/planning.md",
                                           "docs/preferences.md",
                                           "docs/dgc.md",
                                           "docs/distillation.md",
                                           "docs/host_updates.md",
                                           "docs/power_sgd.md",
                                           "docs/promises.md",
                                           "docs/serving.md",
                                           "docs/slow_links.md",
                                           "docs/stability.md",
                                           "docs/sweeps.md",
                                           "docs/systems.md",
                                           "docs/tasks.md",
                                           "docs/measured/slow_links_2026_11.md",
                                           "docs/measured/offload_2026_11.md",
                                           "docs/measured/systems_2026_11.md",
                                           "docs/measured/training_checks.md",
                                           "docs/measured/expert_bugs.md",
                                           "docs/measured/experts_2026_11.md",
                                           "docs/decisions/direct_exchange_not_rings.md",
                                           "docs/decisions/expert_rows_by_source.md",
                                           "docs/decisions/experts_decide_once.md",
                                           "docs/decisions/experts_on_gpus.md",
                                           "docs/decisions/gradients_wait_for_the_verdict.md",
                                           "docs/decisions/owners_after_the_grid.md",
                                           "docs/decisions/saves_keep_second_places.md",
                                           "docs/decisions/stages_change_weights.md",
                                           "docs/decisions/time_in_closed_form.md",
                                           "docs/decisions/stages_have_trainers_of_their_own.md",
                                           "docs/decisions/correction_bias_is_a_parameter.md",
                                           "docs/benchmarks.md",
                                           "docs/gpus.md",
                                           "docs/quickstart.md"};

TEST(PagesText, AreShort) {
  EXPECT_LE(words_of("README.md"), 800);
  EXPECT_LE(words_of("docs/architecture.md"), 2500);
  std::int64_t sum = 0;
  for (const std::string& page : pages(kRoot)) {
    if (!page.starts_with("docs/") || page == "docs/recipe.md") continue;
    if (kLaterPages.contains(page)) {
      EXPECT_LE(words_of(page), 1500) << page;
    } else {
      sum += words_of(page);
    }
  }
  EXPECT_LE(sum, 26'910);
}

// At most 25 words, as a rule: one sentence in twenty may be longer.
TEST(PagesText, HaveShortSentences) {
  static const std::regex kEnd(R"([.!?:;]\s+)");
  std::int64_t sentences = 0, long_ones = 0;
  for (const std::string& page : pages(kRoot)) {
    for (const Line& paragraph : sentences_of(page)) {
      if (paragraph.text.starts_with("|")) continue;
      for (std::sregex_token_iterator at(paragraph.text.begin(), paragraph.text.end(), kEnd, -1),
           end;
           at != end; ++at) {
        std::istringstream words(at->str());
        const auto count = std::distance(std::istream_iterator<std::string>(words), {});
        if (count > 0) ++sentences;
        if (count > 25) ++long_ones;
      }
    }
  }
  EXPECT_GT(sentences, 1000);
  EXPECT_LE(long_ones * 20, sentences);
}

// A fact that is written twice is wrong once. Elsewhere there is a link to the owner.
TEST(PagesText, HaveOneOwnerForEachFact) {
  struct Fact {
    const char* what;
    std::regex pattern;
    std::set<std::string> owners;
  };
  const std::vector<Fact> facts = {
      {"bytes per parameter", std::regex(R"([0-9] ?/ ?N\b)"), {"docs/memory.md"}},
      {"which runs are bit-identical", std::regex(R"(\| same bits)"), {"docs/reproducibility.md"}},
      {"what has run on a GPU",
       std::regex(R"((not|never)( yet)? (been )?run on (a|several) GPU)", std::regex::icase),
       {"docs/status.md"}}};
  for (const Fact& fact : facts) {
    for (const std::string& page : pages(kRoot)) {
      if (fact.owners.contains(page)) continue;
      for (const Line& paragraph : sentences_of(page)) {
        EXPECT_FALSE(std::regex_search(paragraph.text, fact.pattern))
            << where(page, paragraph) << ": " << fact.what << " belongs to "
            << *fact.owners.begin();
      }
    }
  }
}

// Each pattern was found in a sentence that a reader had to read twice. The list grows.
TEST(PagesText, AvoidWordsThatReadersStumbledOver) {
  const std::map<std::string, std::string> banned = {
      {R"(\bbeside\b)", "next to, alongside, compared with"},
      {R"(\bbehind\b)", "after"},
      {R"(\b(go|goes|went|gone|going) on\b)", "continue"},
      {R"(\banew\b)", "again"},
      {R"(\bso many\b)", "N, that many"},
      {R"(\b(some|no|any)body\b)", "a name, or the passive voice"},
      {R"(\b(is|are|was|were) (told|said)\b)", "reported, printed, named"},
      {R"((^|[.:] )Of (a|an|the|all|models|frozen|what)\b)", "begin with the subject"},
      {R"(\b(has|have)n't got\b)", "lacks"},
      {R"(\b(bits of (one|a)|(its|their) bits|(has|have) the bits)\b)", "is bit-identical to"},
      {R"(\bplanted bugs?\b)", "mutation"},
      {R"(\bmended\b)", "fixed"},
      {R"(\bstands? (at|beside|there|once|together|behind|in the)\b)", "is"},
      {R"(\(0\))", "default 0"},
      {R"(\bput off\b)", "postponed"},
      {R"(\bfor ever\b)", "forever"},
      {R"(\bas it stands\b)", "unchanged"},
      {R"(\bis to be\b)", "must be"},
      {R"(\bgood for\b)", "for"},
      {R"(\bcommunication (is )?hid(den)? under\b)", "communication overlaps computation"}};
  std::vector<std::string> all = pages(kRoot);
  all.push_back("CHANGELOG.md");
  std::erase(all, "docs/recipe.md");  // generated: some fields' descriptions still have such words
  for (const auto& [pattern, instead] : banned) {
    const std::regex regex(pattern);
    for (const std::string& page : all) {
      for (const Line& paragraph : sentences_of(page)) {
        std::smatch found;
        EXPECT_FALSE(std::regex_search(paragraph.text, found, regex))
            << where(page, paragraph) << ": \"" << found.str() << "\"; write: " << instead;
      }
    }
  }
}

}  // namespace
}  // namespace sherd::test
