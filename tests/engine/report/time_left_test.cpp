#include "engine/report/time_left.h"

#include <gtest/gtest.h>

namespace sherd::engine {
namespace {

// 100 steps; an evaluation of 5 passes every 10, of 50 at the end; a save every 40 and at the end.
constexpr RunSchedule kSchedule{.max_steps = 100,
                                .eval_interval = 10,
                                .save_interval = 40,
                                .passes_per_eval = 5,
                                .passes_of_final_eval = 50};

void expect_left(const RunSchedule& schedule, std::int64_t done, const RunWork& work) {
  const RunWork left = schedule.left(done);
  EXPECT_EQ(left.steps, work.steps) << done;
  EXPECT_EQ(left.passes, work.passes) << done;
  EXPECT_EQ(left.saves, work.saves) << done;
}

TEST(RunScheduleLeft, CountsStepsEvaluationsAndSaves) {
  expect_left(kSchedule, 0, {100, 9 * 5 + 50, 3});  // evaluations at 10 .. 90, saves at 40, 80, 100
  expect_left(kSchedule, 10, {90, 9 * 5 + 50, 3});  // what is due now is still to be done
  expect_left(kSchedule, 11, {89, 8 * 5 + 50, 3});
  expect_left(kSchedule, 80, {20, 2 * 5 + 50, 2});
  expect_left(kSchedule, 99, {1, 50, 1});
  expect_left(kSchedule, 100, {0, 50, 1});
  expect_left(kSchedule, 101, {0, 0, 0});
  RunSchedule bare = kSchedule;
  bare.eval_interval = bare.save_interval = 0;
  expect_left(bare, 1, {99, 50, 0});
}

TEST(TimeLeft, AddsEveryPartAtItsMean) {
  TimeLeft time(2);
  EXPECT_EQ(time.of({10, 10, 10}).count(), 0.0);
  time.took({.steps = 1}, Seconds(2.0));
  time.took({.steps = 1}, Seconds(4.0));
  EXPECT_DOUBLE_EQ(time.of({.steps = 10}).count(), 30.0);
  // A forward is a third of a micro-step, of which a step has two.
  EXPECT_DOUBLE_EQ(time.of({.passes = 4}).count(), 2.0);
  time.took({.passes = 10}, Seconds(5.0));
  EXPECT_DOUBLE_EQ(time.of({.passes = 4}).count(), 2.0);
  time.took({.passes = 10}, Seconds(15.0));
  time.took({.saves = 1}, Seconds(7.0));
  EXPECT_DOUBLE_EQ(time.of({1, 4, 2}).count(), 3.0 + 4.0 + 14.0);
}

}  // namespace
}  // namespace sherd::engine
