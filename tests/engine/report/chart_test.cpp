#include "engine/report/chart.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

namespace sherd::engine {
namespace {

using Numbers = std::vector<double>;

std::string section(const Curve& curve, bool from_zero = true) {
  return chart_section({.title = "Loss",
                        .label = [](double value) { return fmt::format("<{:g}>", value); },
                        .from_zero = from_zero,
                        .lines = {{0, "run", &curve}}});
}
void expect_in(const std::string& text, const std::string& html) {
  EXPECT_NE(html.find(text), std::string::npos) << text << " in\n" << html;
}

TEST(Ticks, AreRoundNumbersInTheRangeAndAtMostSoMany) {
  EXPECT_EQ(ticks(0, 10, 5), (Numbers{0, 5, 10}));
  EXPECT_EQ(ticks(1.9, 8.9, 5), (Numbers{2, 4, 6, 8}));
  EXPECT_EQ(ticks(-0.3, 0.25, 5), (Numbers{-0.2, -0.1, 0, 0.1, 0.2}));
  EXPECT_EQ(ticks(0, 600, 5), (Numbers{0, 200, 400, 600}));
  EXPECT_EQ(ticks(3, 3, 5), Numbers{3});
  EXPECT_EQ(ticks(4, std::nextafter(4.0, 5.0), 5), Numbers{4}) << "nothing between them";
  for (int low = -40; low < 40; ++low) {
    for (int width = 1; width < 300; ++width) {
      const Numbers found = ticks(low / 7.0, (low + width) / 7.0, 5);
      EXPECT_GE(found.size(), 1u);
      EXPECT_LE(found.size(), 5u);
      EXPECT_GE(found.front(), low / 7.0 - 1e-9);
      EXPECT_LE(found.back(), (low + width) / 7.0 + 1e-9);
    }
  }
}

TEST(Stretches, AreMeansAndRangesOfConsecutivePoints) {
  const auto found = stretches_of({{1, 4}, {2, 1}, {3, 1}, {4, 6}, {5, 8}}, 2);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].step, 2);
  EXPECT_DOUBLE_EQ(found[0].mean, 2);
  EXPECT_EQ(found[0].low, 1);
  EXPECT_EQ(found[0].high, 4);
  EXPECT_EQ(found[1].step, 4.5);
  EXPECT_EQ(found[1].mean, 7);
  EXPECT_TRUE(std::isnan(stretches_of({{1, 4}, {2, std::nan("")}}, 1)[0].mean));
  EXPECT_TRUE(stretches_of({}, 5).empty());
}

// The axis goes from 0 to 4 % above 10, the picture from 300 at its foot to 0.
TEST(Chart, ALineGoesThroughItsPointsAndIsInterruptedWhereThereIsNoNumber) {
  expect_in("d=\"M0.0 300.0h0L500.0 155.8L1000.0 11.5\"", section({{0, 0}, {5, 5}, {10, 10}}));
  expect_in("d=\"M0.0 300.0h0M1000.0 11.5h0\"", section({{0, 0}, {5, std::nan("")}, {10, 10}}));
  EXPECT_EQ(section({{1, std::nan("")}}), "");
  EXPECT_EQ(section({}), "");
}

TEST(Chart, ManyStepsAreMeansInABandOfTheirRange) {
  Curve curve;
  for (int step = 0; step < 300; ++step) curve.push_back({step, step % 2 == 0 ? 0.0 : 10.0});
  const std::string html = section(curve);
  expect_in("means of 2 steps; band: lowest to highest value", html);
  expect_in("class=\"band\" style=\"fill:var(--run-0)\" d=\"M1.7 11.5L8.4 11.5", html);
  expect_in("L8.4 300.0L1.7 300.0\"", html);
}

TEST(Chart, LabelsStandAtTheirValuesAndAreEscaped) {
  const std::string html = section({{0, 0}, {100, 10}});
  expect_in("<span class=\"value\" style=\"bottom:48.08%\">&lt;5&gt;</span>", html);
  expect_in("<span class=\"step\" style=\"left:50.00%\">50</span>", html);
}

TEST(Chart, ValuesOfManyMagnitudesHaveALogarithmicAxisUnlessItBeginsAt0) {
  const Curve wide = {{1, 0.01}, {2, 1}, {3, 100}};
  const std::string html = section(wide, false);
  expect_in("over steps; logarithmic", html);
  expect_in("style=\"bottom:50.00%\">&lt;1&gt;", html);
  EXPECT_EQ(section(wide, true).find("logarithmic"), std::string::npos);
  EXPECT_EQ(section({{1, 1}, {2, 49}}, false).find("logarithmic"), std::string::npos);
  EXPECT_EQ(section({{1, 0}, {2, 1}, {3, 100}}, false).find("logarithmic"), std::string::npos);
}

TEST(Chart, BytesHaveTicksOfTheirOwnUnits) {
  const Curve curve = {{1, 3.0 * (1 << 30)}};
  const std::string html =
      chart_section({.title = "Memory",
                     .label = [](double v) { return fmt::format("{:.0f}", v); },
                     .from_zero = true,
                     .bytes = true,
                     .lines = {{0, "run", &curve}}});
  for (const std::int64_t gib : {0, 1, 2, 3}) {
    expect_in(fmt::format(">{}</span>", gib << 30), html);
  }
}

TEST(Chart, RunsHaveColoursThatComeAgainDashed) {
  const Curve curve = {{1, 1}, {2, 2}};
  const std::string html = chart_section({.title = "Loss",
                                          .label = [](double) { return ""; },
                                          .lines = {{1, "one", &curve}, {9, "<nine>", &curve}}});
  expect_in("class=\"line\" data-run=\"1\" style=\"stroke:var(--run-1)\"", html);
  expect_in("class=\"line dashed\" data-run=\"9\" style=\"stroke:var(--run-1)\"", html);
  expect_in("<i style=\"background:var(--run-1)\"></i>&lt;nine&gt;</li>", html);
}

}  // namespace
}  // namespace sherd::engine
