#include "engine/report/run_history.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::engine {
namespace {

const std::string kSecondVersion = "{\"metrics_version\":2}\n";

std::string step_line(int step, double loss) {
  return fmt::format(
      "{{\"step\":{},\"loss\":{},\"grad_norm\":{},\"lr\":0.5,\"tokens\":{},\"tokens_per_s\":8,"
      "\"exposed_comm_ms\":0.25,\"peak_bytes\":{{\"logits\":1,\"total\":64}}}}\n",
      step, loss, 2 * loss, 100 * step);
}

RunHistory history(const std::string& text) {
  return parse_history(text, "metrics.jsonl");
}

TEST(RunHistory, HasACurveOfEachFigure) {
  const RunHistory found = history(kSecondVersion + step_line(1, 4) + step_line(2, 3) +
                                   "{\"step\":2,\"val_loss\":3.5,\"num_tokens\":9}\n" +
                                   "{\"step\":2,\"saved\":2,\"bytes\":1}\n");
  EXPECT_EQ(found.loss, (Curve{{1, 4}, {2, 3}}));
  EXPECT_EQ(found.grad_norm, (Curve{{1, 8}, {2, 6}}));
  EXPECT_EQ(found.lr, (Curve{{1, 0.5}, {2, 0.5}}));
  EXPECT_EQ(found.tokens_per_s, (Curve{{1, 8}, {2, 8}}));
  EXPECT_EQ(found.exposed_comm_ms, (Curve{{1, 0.25}, {2, 0.25}}));
  EXPECT_EQ(found.memory, (Curve{{1, 64}, {2, 64}}));
  EXPECT_EQ(found.val_loss, (Curve{{2, 3.5}}));
  EXPECT_EQ(found.tokens, 200);
}

TEST(RunHistory, OfAStepThatStandsThereAgainTheLastLineCountsAndLaterOnesGo) {
  const RunHistory found = history(
      kSecondVersion + step_line(1, 4) + step_line(2, 3) + "{\"step\":2,\"val_loss\":3.5}\n" +
      step_line(3, 2) + "{\"step\":3,\"val_loss\":2.5}\n{\"step\":3,\"stopped_early\":true}\n" +
      step_line(3, 7) + "{\"step\":3,\"val_loss\":7.5}\n{\"step\":3,\"val_loss\":8.5}\n");
  EXPECT_EQ(found.loss, (Curve{{1, 4}, {2, 3}, {3, 7}}));
  EXPECT_EQ(found.memory.size(), 3u);
  EXPECT_EQ(found.val_loss, (Curve{{2, 3.5}, {3, 8.5}}));
  EXPECT_EQ(found.dropped_lines, 1);
  EXPECT_EQ(found.early_end, std::nullopt) << "it continued";
}

std::string slow_line(int step, int rank, double own_ms) {
  return fmt::format(
      "{{\"step\":{},\"loss\":4,\"tokens_per_s\":8,\"slowest_rank\":{},"
      "\"slowest_rank_ms\":{},\"median_rank_ms\":50}}\n",
      step, rank, own_ms);
}

TEST(RunHistory, NamesTheRankThatWasTheSlowestInMostSteps) {
  EXPECT_EQ(history(kSecondVersion + step_line(1, 4)).slowest, "") << "one rank";
  const std::string most =
      slow_line(1, 3, 80) + slow_line(2, 0, 60) + slow_line(3, 3, 90) + slow_line(4, 3, 500);
  EXPECT_EQ(history(kSecondVersion + most).slowest,
            "rank 3 was the slowest in 3 of 4 steps, at the median 1.80 times the median rank");
  EXPECT_EQ(history(kSecondVersion + most + slow_line(2, 0, 60)).slowest, "") << "1 of 2";
  EXPECT_EQ(history(kSecondVersion + slow_line(1, 3, 54) + slow_line(2, 3, 54)).slowest, "")
      << "of equal ranks one is always the slowest";
  EXPECT_EQ(history(kSecondVersion + slow_line(1, -1, 80)).slowest, "");
}

TEST(RunHistory, AFileOfTheFirstVersionCountsStepsFrom0) {
  const RunHistory found =
      history(step_line(0, 4) + "{\"step\":0,\"val_loss\":3.5}\n" + step_line(1, 3));
  EXPECT_EQ(found.loss, (Curve{{1, 4}, {2, 3}}));
  EXPECT_EQ(found.val_loss, (Curve{{1, 3.5}}));
}

TEST(RunHistory, WhatIsNoNumberIsNoneAndWhatIsNoLineIsLeftOut) {
  const RunHistory found = history(
      kSecondVersion + "{\"step\":1,\"loss\":null,\"loss_text\":\"nan\",\"tokens_per_s\":8}\n" +
      "not json\n[1]\n{\"step\":\"2\",\"loss\":1,\"tokens_per_s\":8}\n" +
      "{\"step\":2,\"tokens_per_s\":8,\"peak_bytes\":3,\"tokens\":-1}\n{\"step\":3,\"lo");
  ASSERT_EQ(found.loss.size(), 2u);
  EXPECT_TRUE(std::isnan(found.loss[0].value));
  EXPECT_TRUE(std::isnan(found.loss[1].value));
  EXPECT_EQ(found.tokens, 0);
}

TEST(RunHistory, RefusesAVersionThatCameLaterAndAFolderWithoutARun) {
  EXPECT_NE(test::error_text<DataError>([] {
              history("{\"metrics_version\":3}\n");
            }).find("metrics.jsonl: has metrics of version 3"),
            std::string::npos);
  const test::TempFolder folder;
  EXPECT_EQ(test::error_text<DataError>([&] { read_history(folder.path()); }),
            folder.path() + "/metrics.jsonl: doesn't exist; name a run's folder.");
}

TEST(RunHistory, LowestLastAndMedianPassOverWhatIsNoNumber) {
  const Curve curve = {{1, 5}, {2, std::nan("")}, {3, 2}, {4, 9}, {5, std::nan("")}};
  EXPECT_EQ(lowest(curve), (CurvePoint{3, 2}));
  EXPECT_EQ(last_value(curve), 9);
  EXPECT_EQ(median(curve), 5);
  EXPECT_EQ(median({{1, 1}, {2, 2}}), 2);
  const Curve none = {{1, std::nan("")}};
  EXPECT_FALSE(lowest(none) || last_value(none) || median(none));
}

}  // namespace
}  // namespace sherd::engine
