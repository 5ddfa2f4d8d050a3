#include "engine/schedule/picture.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "tests/engine/schedule/schedule_support.h"

namespace sherd::schedule {
namespace {

using test::executable;
using test::request;
using test::unit_times;

// 1 ms each.
StepTimes milliseconds(const Schedule& schedule) {
  StepTimes times = unit_times(schedule.layout);
  for (ChunkTimes& chunk : times.chunks) {
    chunk.forward *= 1000;
    chunk.input_gradient *= 1000;
    chunk.weight_gradient *= 1000;
  }
  return times;
}

std::string drawn(const OrderRequest& of, int columns = 80) {
  const Schedule schedule = executable(of);
  return picture(schedule, simulate(schedule, milliseconds(schedule)), columns);
}

// The figure of arXiv:2006.09503, drawn by hand.
TEST(Picture, OneForwardOneBackwardLooksAsInItsPaper) {
  EXPECT_EQ(drawn(request(Order::k1F1B, 4, 4)),
            "time    0                                                         21 ms\n"
            "rank 0  FFFFFFFFFFFF..................BBBBBB...BBBBBB...BBBBBB...BBBBBB\n"
            "        0  1  2  3                    0        1        2        3\n"
            "rank 1  ...FFFFFFFFF............BBBBBBFFFBBBBBB...BBBBBB...BBBBBB......\n"
            "           0  1  2              0     3  1        2        3\n"
            "rank 2  ......FFFFFF......BBBBBBFFFBBBBBBFFFBBBBBB...BBBBBB............\n"
            "              0  1        0     2  1     3  2        3\n"
            "rank 3  .........FFFBBBBBBFFFBBBBBBFFFBBBBBBFFFBBBBBB..................\n"
            "                 0  0     1  1     2  2     3  3\n"
            "F forward, B backward, . idle\n");
}

// Worked out by hand, half a millisecond in two columns.
TEST(Picture, SecondChunksHaveSmallLetters) {
  EXPECT_EQ(
      drawn(request(Order::kZbV, 2, 2), 40),
      "time    0                       7 ms\n"
      "rank 0  FFFF..ffiiwwffiiwwIIWW..IIWW\n"
      "        0 1   0 0 0 1 1 1 0 0   1 1\n"
      "rank 1  ..FFffFFffiiwwIIWWiiwwIIWW..\n"
      "          0 0 1 1 0 0 0 0 1 1 1 1\n"
      "F forward, I input gradients, W weight gradients, . idle; small letters: a rank's second "
      "chunk\n");
}

TEST(Picture, FourChunksAreNamedBelow) {
  const std::string text = drawn(request(Order::kInterleaved1F1B, 2, 2, 4), 120);
  EXPECT_NE(text.find("  chunk "), std::string::npos) << text;
}

// Each rank's letters, in the order of time, over all bands.
std::vector<std::string> letters_by_rank(const std::string& text, int ranks) {
  std::vector<std::string> letters(static_cast<std::size_t>(ranks));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("rank "))
      letters[static_cast<std::size_t>(line[5] - '0')] += line.substr(8);
  }
  return letters;
}

TEST(Picture, LongStepsGoOnInFurtherBandsAndLoseNothing) {
  const std::string text = drawn(request(Order::kLayerParallel, 4, 20));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u);
  for (const std::string& letters : letters_by_rank(text, 4)) {
    EXPECT_EQ(std::count(letters.begin(), letters.end(), 'F'), 20);
    EXPECT_EQ(std::count(letters.begin(), letters.end(), 'B'), 40);
  }
}

TEST(Picture, TheSvgHasARectangleForEachActionThatComputes) {
  const Schedule schedule = executable(request(Order::kZbV, 2, 2));
  const Simulation run = simulate(schedule, milliseconds(schedule));
  const std::string svg = picture_svg(schedule, run);
  const std::regex rectangle(
      "<rect class=\"([a-z_]+)[^\"]*\" data-action=\"([^\"]*)\" data-begin=\"([0-9]*)\" "
      "data-end=\"([0-9]*)\"");
  int count = 0;
  for (std::sregex_iterator it(svg.begin(), svg.end(), rectangle), end; it != end; ++it, ++count) {
    bool found = false;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
        if (text_of(schedule.ranks[rank][i]) != (*it)[2]) continue;
        found = true;
        EXPECT_EQ(run.spans[rank][i].begin.count(), std::stoll((*it)[3]));
        EXPECT_EQ(run.spans[rank][i].end.count(), std::stoll((*it)[4]));
      }
    }
    EXPECT_TRUE(found) << (*it)[2];
  }
  EXPECT_EQ(count, 2 * 2 * 2 * 3);  // ranks, chunks, micro-batches; F, I, W
  EXPECT_NE(svg.find("faded: a rank’s later chunks"), std::string::npos);
  for (const char* name : {"forward", "input_gradient", "weight_gradient"}) {
    EXPECT_NE(kPictureStyle.find(std::string("--") + name + ":"), std::string_view::npos);
  }
}

TEST(Picture, TheChromeTraceHasAProcessPerRankAndAThreadPerStream) {
  const Schedule schedule = executable(request(Order::k1F1B, 2, 2), {.reduces = Reduces::kPerStep});
  StepTimes times = milliseconds(schedule);
  times.message = std::chrono::milliseconds(1);
  times.chunks[1].reduce = std::chrono::milliseconds(2);
  const auto events = nlohmann::json::parse(chrome_trace(schedule, simulate(schedule, times)));
  std::map<std::string, nlohmann::json> by_label;
  std::map<std::pair<int, int>, std::string> threads;
  for (const auto& event : events) {
    if (event.at("ph") == "X") by_label[event.at("name")] = event;
    if (event.at("name") == "thread_name") {
      threads[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
    }
  }
  const auto thread = [&](const std::string& label) {
    const auto& event = by_label.at(label);
    return threads.at({event.at("pid"), event.at("tid")});
  };
  EXPECT_EQ(by_label.at("1F0").at("pid"), 1);
  EXPECT_EQ(by_label.at("1F0").at("ts").get<double>(), 2000.0);  // microseconds
  EXPECT_EQ(by_label.at("1B0").at("dur").get<double>(), 2000.0);
  EXPECT_EQ(thread("1F0"), "compute");
  EXPECT_EQ(thread("0SEND_F0"), "send 0 to 1");
  EXPECT_EQ(thread("1SEND_B0"), "send 1 to 0");
  EXPECT_EQ(thread("1RECV_F0"), "receive");
  EXPECT_EQ(thread("1REDUCE"), "reduce");
  EXPECT_FALSE(by_label.contains("0REDUCE"));  // took no time
}

}  // namespace
}  // namespace sherd::schedule
