// The text, the JSON and the page show one set of figures, and the figures are the plan's.

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "core/byte_size.h"
#include "tests/engine/plan/plan_support.h"

namespace sherd::engine {
namespace {

using Json = nlohmann::json;

struct Shown {
  PlanReport report;
  std::string text, page;
  Json json;
};
Shown show(const ResolvedRecipe& recipe, const DeviceLimit& limit) {
  PlanReport report = plan_report(recipe, limit);
  std::string text = plan_text(report), page = plan_page(report);
  Json json = Json::parse(plan_json(report));
  return {std::move(report), std::move(text), std::move(page), std::move(json)};
}

std::vector<Shown> examples() {
  std::vector<Shown> all;
  all.push_back(show(resolved(kSmallRecipe), per_rank(std::int64_t{80} << 30)));
  all.push_back(show(resolved(kSmallRecipe), together(1 << 30)));
  all.push_back(
      show(resolved(kSmallRecipe, {"zero_optimization.stage=3", "optimizer.type=muon",
                                   "mixed_precision.param_dtype=bf16", "checkpoint.interval=5"}),
           per_rank(100 << 20)));
  all.push_back(show(resolved(kTrillionRecipe), per_rank(std::int64_t{250} << 30)));
  return all;
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

// The line of the text that begins with `name`, without it.
std::vector<std::string> figures_of(const std::string& text, const std::string& name) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(name + "  ")) return words_of(line.substr(name.size()));
  }
  ADD_FAILURE() << "no line \"" << name << "\" in\n" << text;
  return {};
}

const std::vector<std::string> kPhases = {"init",     "forward", "loss",
                                          "backward", "update",  "evaluation"};

std::int64_t bytes_at(const Json& by_category, const std::string& category) {
  return by_category.contains(category) ? by_category.at(category).get<std::int64_t>() : 0;
}

// name -> data-bytes and shown text of every cell of a table, empty cells left out.
using Cells = std::vector<std::pair<std::int64_t, std::string>>;
std::map<std::string, Cells> page_table(const std::string& page, const std::string& id) {
  const std::size_t begin = page.find("<table id=\"" + id + "\"");
  const std::string table = page.substr(begin, page.find("</table>", begin) - begin);
  std::map<std::string, Cells> rows;
  const std::regex row("<tr[^>]*>(.*?)</tr>"), first("<td>(?:<i [^>]*></i>)?([^<]+)</td>"),
      cell("<td data-bytes=\"(\\d+)\"[^>]*>([^<]*)</td>");
  for (std::sregex_iterator r(table.begin(), table.end(), row), end; r != end; ++r) {
    const std::string content = (*r)[1];
    std::smatch name;
    if (!std::regex_search(content, name, first)) continue;
    Cells& cells = rows[name[1]];
    for (std::sregex_iterator c(content.begin(), content.end(), cell); c != end; ++c) {
      cells.emplace_back(std::stoll((*c)[1]), (*c)[2]);
    }
  }
  return rows;
}

TEST(PlanReport, TextJsonAndPageHaveTheSameMemoryTable) {
  for (const Shown& shown : examples()) {
    const Json& plan = shown.json.at("plan");
    auto rows = page_table(shown.page, "memory");
    int categories = 0;
    for (int i = 0; i < kNumCategories; ++i) {
      const std::string category(name_of(static_cast<Category>(i)));
      const std::string name = readable_name(static_cast<Category>(i));
      std::vector<std::int64_t> expected = {bytes_at(plan.at("at_rest"), category)};
      for (const std::string& phase : kPhases) {
        expected.push_back(bytes_at(plan.at("by_phase").at(phase), category));
      }
      if (expected == std::vector<std::int64_t>(7, 0)) {
        EXPECT_FALSE(rows.contains(name)) << name;
        continue;
      }
      ++categories;
      const auto figures = figures_of(shown.text, name);
      const Cells& cells = rows[name];
      ASSERT_EQ(figures.size(), 7u) << name;
      ASSERT_EQ(cells.size(), 7u) << name;
      for (std::size_t column = 0; column < 7; ++column) {
        EXPECT_EQ(cells[column].first, expected[column]) << name << ", column " << column;
        EXPECT_EQ(cells[column].second, figures[column]) << name << ", column " << column;
      }
    }
    EXPECT_GE(categories, 6);
    const std::int64_t arena = plan.at("arena_bytes");
    const auto figures = figures_of(shown.text, "live");
    ASSERT_EQ(rows["live"].size(), 7u);
    ASSERT_EQ(rows["gaps and idle"].size(), 6u);
    std::int64_t peak = 0;
    for (std::size_t column = 0; column < 7; ++column) {
      std::int64_t sum = 0;
      const Json& all =
          column == 0 ? plan.at("at_rest") : plan.at("by_phase").at(kPhases[column - 1]);
      for (const auto& [category, bytes] : all.items()) sum += bytes.get<std::int64_t>();
      EXPECT_EQ(rows["live"][column].first, sum);
      EXPECT_EQ(rows["live"][column].second, figures[column]);
      if (column == 0) continue;
      EXPECT_EQ(rows["gaps and idle"][column - 1].first, arena - sum);
      EXPECT_EQ(rows["arena"][column - 1].first, arena);
      peak = std::max(peak, sum);
    }
    EXPECT_EQ(peak, plan.at("peak_bytes").get<std::int64_t>());
    EXPECT_EQ(arena - peak, plan.at("gap_bytes").get<std::int64_t>());
    EXPECT_EQ(rows.size(), static_cast<std::size_t>(categories) + 3);
  }
}

// The bars are drawn to scale: every piece is as wide as its bytes, every column as high.
TEST(PlanReport, BarsOfThePageAreTheStagesAndPhasesOfTheJson) {
  for (const Shown& shown : examples()) {
    const std::regex stage_start(
        "<div class=\"stage\" data-stage=\"(\\d)\" data-peak-bytes=\"(\\d+)\" "
        "data-arena-bytes=\"(\\d+)\">(.*?)\n"),
        piece("data-category=\"(\\w+)\" data-bytes=\"(\\d+)\"[^>]*(?:width|height):([0-9.]+)%"),
        column(
            "<div class=\"column[^\"]*\" data-phase=\"(\\w+)\" data-bytes=\"(\\d+)\">(.*?)</div>");
    const std::sregex_iterator end;
    std::size_t stages = 0;
    for (std::sregex_iterator s(shown.page.begin(), shown.page.end(), stage_start); s != end; ++s) {
      const Json& expected = shown.json.at("stages").at(stages++);
      EXPECT_EQ(expected.at("stage"), std::stoi((*s)[1]));
      const std::int64_t peak = std::stoll((*s)[2]);
      EXPECT_EQ(expected.at("peak_bytes"), peak);
      EXPECT_EQ(expected.at("arena_bytes"), std::stoll((*s)[3]));
      const Json& phase = expected.at("by_phase").at(expected.at("peak_phase").get<std::string>());
      const std::string pieces = (*s)[4];
      std::size_t found = 0;
      for (std::sregex_iterator p(pieces.begin(), pieces.end(), piece); p != end; ++p, ++found) {
        const std::int64_t bytes = std::stoll((*p)[2]);
        EXPECT_EQ(bytes_at(phase, (*p)[1]), bytes);
        EXPECT_NEAR(std::stod((*p)[3]),
                    100.0 * static_cast<double>(bytes) / static_cast<double>(peak), 1e-3);
      }
      EXPECT_EQ(found, phase.size());
    }
    EXPECT_EQ(stages, shown.json.at("stages").size());

    const Json& plan = shown.json.at("plan");
    std::size_t phases = 0;
    for (std::sregex_iterator c(shown.page.begin(), shown.page.end(), column); c != end; ++c) {
      EXPECT_EQ((*c)[1], kPhases.at(phases++));
      const Json& phase = plan.at("by_phase").at((*c)[1].str());
      const std::string pieces = (*c)[3];
      std::size_t found = 0;
      std::int64_t sum = 0;
      for (std::sregex_iterator p(pieces.begin(), pieces.end(), piece); p != end; ++p, ++found) {
        const std::int64_t bytes = std::stoll((*p)[2]);
        EXPECT_EQ(bytes_at(phase, (*p)[1]), bytes);
        EXPECT_NEAR(std::stod((*p)[3]),
                    100.0 * static_cast<double>(bytes) / plan.at("arena_bytes").get<double>(),
                    1e-3);
        sum += bytes;
      }
      EXPECT_EQ(found, phase.size());
      EXPECT_EQ(sum, std::stoll((*c)[2]));
    }
    EXPECT_EQ(phases, kPhases.size());
  }
}

TEST(PlanReport, TextJsonAndPageHaveTheSameTraffic) {
  for (const Shown& shown : examples()) {
    auto rows = page_table(shown.page, "sent");
    const ByteUnit unit = unit_for(shown.json.at("sent_bytes"));
    std::int64_t sum = 0;
    for (const Json& sent : shown.json.at("sent")) {
      const std::string label = sent.at("what");
      const std::int64_t bytes = sent.at("bytes");
      sum += bytes;
      ASSERT_EQ(rows[label].size(), 1u) << label;
      EXPECT_EQ(rows[label][0].first, bytes) << label;
      EXPECT_EQ(rows[label][0].second, unit.text(bytes)) << label;
      std::istringstream in(shown.text.substr(shown.text.find("sent in a step by")));
      bool found = false;
      for (std::string line; std::getline(in, line);) {
        if (!line.starts_with(label + "  ")) continue;
        found = true;
        EXPECT_EQ(words_of(line.substr(label.size())),
                  (std::vector<std::string>{sent.at("collective"), sent.at("dtype"),
                                            std::to_string(sent.at("calls").get<std::int64_t>()),
                                            unit.text(bytes)}));
      }
      EXPECT_TRUE(found) << label;
    }
    EXPECT_EQ(sum, shown.json.at("sent_bytes").get<std::int64_t>());
    EXPECT_EQ(rows["sum"][0].first, sum);
    const int stage = shown.json.at("stage");
    for (const Json& of_stage : shown.json.at("stages")) {
      if (of_stage.at("stage") == stage) {
        EXPECT_EQ(of_stage.at("sent_bytes"), sum);
        EXPECT_EQ(of_stage.at("peak_bytes"), shown.json.at("plan").at("peak_bytes"));
      }
    }
  }
}

TEST(PlanReport, TextJsonAndPageGiveTheSameAdvice) {
  int changes = 0;
  for (const Shown& shown : examples()) {
    EXPECT_EQ(shown.json.at("fits"), shown.report.fits());
    EXPECT_EQ(shown.text.find("\nfits: ") != std::string::npos, shown.report.fits());
    EXPECT_EQ(shown.page.find("It fits") != std::string::npos, shown.report.fits());
    EXPECT_EQ(shown.json.at("changes").empty(), shown.report.fits());
    std::string commands;
    for (const Json& change : shown.json.at("changes")) {
      std::string command;
      for (const std::string argument : change.at("arguments")) command += " " + argument;
      EXPECT_NE(shown.text.find("\n " + command + "  ("), std::string::npos) << command;
      EXPECT_NE(shown.page.find("<code>" + command.substr(1) + "</code>"), std::string::npos);
      EXPECT_LE(change.at("needed_bytes"), shown.json.at("limit").at("bytes"));
      ++changes;
    }
    for (const auto& [key, label] :
         {std::pair("largest_micro_batch", "largest micro-batch that fits: "),
          std::pair("smallest_world", "smallest world that fits: ")}) {
      const std::string value = shown.json.at(key).is_null()
                                    ? "none"
                                    : std::to_string(shown.json.at(key).at("value").get<int>());
      EXPECT_NE(shown.text.find(label + value), std::string::npos) << label << value;
    }
  }
  EXPECT_GE(changes, 3);
}

TEST(PlanReport, ThePageNeedsNothingElseAndShowsNamesAsTheyAre) {
  const Shown shown = show(resolved(kSmallRecipe, {"run.name=<b>\"a&b\"</b>"}), per_rank(1 << 30));
  EXPECT_EQ(shown.page.find("<b>\"a"), std::string::npos);
  EXPECT_NE(shown.page.find("<h1>&lt;b&gt;&quot;a&amp;b&quot;&lt;/b&gt;</h1>"), std::string::npos);
  for (const char* outside : {"http", "src=", "<script", "<link", "@import", "url("}) {
    EXPECT_EQ(shown.page.find(outside), std::string::npos) << outside;
  }
  EXPECT_NE(shown.page.find("prefers-color-scheme: dark"), std::string::npos);
  EXPECT_NE(shown.page.find("width=device-width"), std::string::npos);
  // On a narrow screen every table scrolls by itself, and a line above it says so.
  const std::regex tables("<table");
  const std::regex scrolling(
      "<p class=\"hint [^\n]*</p>\n<div class=\"scroll\" tabindex=\"0\"[^>]*><table");
  const auto count = [&](const std::regex& label) {
    return std::distance(std::sregex_iterator(shown.page.begin(), shown.page.end(), label),
                         std::sregex_iterator());
  };
  EXPECT_EQ(count(tables), 2);
  EXPECT_EQ(count(scrolling), 2);
  for (int i = 0; i < kNumCategories; ++i) {
    const std::string colour = fmt::format("--{}: #", name_of(static_cast<Category>(i)));
    const std::size_t light = shown.page.find(colour);
    ASSERT_NE(light, std::string::npos) << colour;
    EXPECT_NE(shown.page.find(colour, light + 1), std::string::npos) << colour << " in the dark";
  }
}

}  // namespace
}  // namespace sherd::engine
