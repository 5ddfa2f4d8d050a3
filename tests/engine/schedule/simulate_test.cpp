#include "engine/schedule/simulate.h"

#include <gtest/gtest.h>

#include "tests/engine/schedule/schedule_support.h"

namespace sherd::schedule {
namespace {

using test::executable;
using test::kUnit;
using test::request;
using test::unit_times;
using test::units;

// Begin and end of an action, in units.
std::pair<double, double> span_of(const Simulation& run, const Schedule& schedule,
                                  const std::string& action) {
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      if (text_of(schedule.ranks[rank][i]) != action) continue;
      const Span& span = run.spans[rank][i];
      return {units(span.begin), units(span.end)};
    }
  }
  ADD_FAILURE() << action << " isn't there";
  return {};
}

using Pair = std::pair<double, double>;

// By hand: two ranks, forwards of 1 and backwards of 2.
TEST(Simulate, GPipeOnTwoRanksRunsAsInTheTextbook) {
  const Schedule schedule = executable(request(Order::kGPipe, 2, 2));
  const Simulation run = simulate(schedule, unit_times(schedule.layout));
  EXPECT_EQ(span_of(run, schedule, "0F1"), Pair(1, 2));
  EXPECT_EQ(span_of(run, schedule, "1F0"), Pair(1, 2));
  EXPECT_EQ(span_of(run, schedule, "1F1"), Pair(2, 3));
  EXPECT_EQ(span_of(run, schedule, "1B0"), Pair(3, 5));
  EXPECT_EQ(span_of(run, schedule, "1B1"), Pair(5, 7));
  EXPECT_EQ(span_of(run, schedule, "0B0"), Pair(5, 7));
  EXPECT_EQ(span_of(run, schedule, "0B1"), Pair(7, 9));
  EXPECT_EQ(units(run.makespan), 9);
  EXPECT_EQ(units(run.idle(0)), 3);
  EXPECT_EQ(units(run.ranks[1].idle_inside()), 0);
  EXPECT_DOUBLE_EQ(run.idle_share(), 1.0 / 3.0);
}

// The slowest rank, here the last with its head, sets the pace: (m - 1) of its times, and one of each.
TEST(Simulate, AnUnequalPipelineRunsAtItsSlowestRank) {
  constexpr int kMicroBatches = 12;
  const Schedule schedule = executable(request(Order::k1F1B, 4, kMicroBatches));
  StepTimes times = unit_times(schedule.layout);
  times.chunks[0].forward = 2 * kUnit;
  times.chunks[3] = {
      .forward = 2 * kUnit, .input_gradient = 3 * kUnit, .weight_gradient = 2 * kUnit};
  EXPECT_EQ(units(simulate(schedule, times).makespan), (kMicroBatches - 1) * 7 + 4 + 3 + 3 + 7);
}

TEST(Simulate, AWholeBackwardMayTakeLessThanItsHalves) {
  const Schedule schedule = executable(request(Order::kLayerParallel, 1, 3));
  StepTimes times = unit_times(schedule.layout, 2, 2, 2);
  EXPECT_EQ(units(simulate(schedule, times).makespan), 18);
  times.chunks[0].backward = 3 * kUnit;
  EXPECT_EQ(units(simulate(schedule, times).makespan), 15);
}

// One micro-batch at a time goes down and up all boundaries.
TEST(Simulate, LayerParallelismPaysForEveryMessage) {
  const Schedule schedule = executable(request(Order::kLayerParallel, 4, 3));
  StepTimes times = unit_times(schedule.layout);
  times.message = 5 * kUnit;
  EXPECT_EQ(units(simulate(schedule, times).makespan), 3 * (4 * 3 + 2 * 3 * 5));
}

// Rank 1's forwards take 3, messages 1. With one slot a message waits until the one before is taken.
TEST(Simulate, AMessageWaitsForASlotAndItsSenderDoesNot) {
  const Schedule schedule = executable(request(Order::kGPipe, 2, 3));
  StepTimes times = unit_times(schedule.layout);
  times.chunks[1].forward = 3 * kUnit;
  times.message = kUnit;
  const Simulation one = simulate(schedule, times, {.slots = 1});
  EXPECT_EQ(span_of(one, schedule, "0SEND_F0"), Pair(1, 2));
  EXPECT_EQ(span_of(one, schedule, "0SEND_F1"), Pair(2, 3));
  EXPECT_EQ(span_of(one, schedule, "0SEND_F2"), Pair(5, 6));
  EXPECT_EQ(span_of(one, schedule, "0F2"), Pair(2, 3));
  EXPECT_EQ(span_of(one, schedule, "1F1"), Pair(5, 8));
  const Simulation two = simulate(schedule, times, {.slots = 2});
  EXPECT_EQ(span_of(two, schedule, "0SEND_F2"), Pair(3, 4));
}

TEST(Simulate, GathersOverlapTheComputationAndForwardsWaitForThem) {
  const Schedule schedule =
      executable(request(Order::kZbV, 1, 1), {.gathers = true, .reduces = Reduces::kPerStep});
  ASSERT_EQ(actions_text(schedule.ranks[0]),
            "0GATHER 1GATHER 0F0 1F0 1I0 1RELEASE 1W0 1REDUCE 0I0 0RELEASE 0W0 0REDUCE");
  StepTimes times{.chunks = {2,
                             {.forward = kUnit,
                              .input_gradient = kUnit,
                              .weight_gradient = kUnit,
                              .gather = 3 * kUnit,
                              .reduce = 4 * kUnit}}};
  const Simulation run = simulate(schedule, times);
  EXPECT_EQ(span_of(run, schedule, "1GATHER"), Pair(3, 6));
  EXPECT_EQ(span_of(run, schedule, "0F0"), Pair(3, 4));
  EXPECT_EQ(span_of(run, schedule, "1F0"), Pair(6, 7));
  EXPECT_EQ(span_of(run, schedule, "1REDUCE"), Pair(9, 13));
  EXPECT_EQ(span_of(run, schedule, "0W0"), Pair(10, 11));
  EXPECT_EQ(span_of(run, schedule, "0REDUCE"), Pair(13, 17));
  EXPECT_EQ(units(run.makespan), 17);
  EXPECT_EQ(units(run.ranks[0].idle_inside()), 2);
}

TEST(Simulate, APairHidesAShareOfItsShorterAction) {
  const Schedule schedule = schedule_from(
      "pipeline 1 chunks_per_rank 1 placement looped micro_batches 2 gathers no reduces never\n"
      "rank 0: 0F0 (0F1+0B0) 0B1\n");
  StepTimes times = unit_times(schedule.layout, 1, 2, 2);
  EXPECT_EQ(units(simulate(schedule, times).makespan), 10);
  times.overlap = 0.5;
  const Simulation run = simulate(schedule, times);
  EXPECT_EQ(span_of(run, schedule, "0F1"), Pair(1, 2));
  EXPECT_EQ(span_of(run, schedule, "0B0"), Pair(1.5, 5.5));
  EXPECT_EQ(units(run.makespan), 9.5);
  EXPECT_EQ(units(run.ranks[0].busy), 9.5);
}

// 1F1B holds a forward back while its rank computes backwards, so a message costs it nothing as long as
// it takes no longer than the rank would have waited anyway.
TEST(Simulate, SendingDuringTheComputationHidesShortMessages) {
  const Schedule schedule = executable(request(Order::kGPipe, 2, 8));
  StepTimes times = unit_times(schedule.layout);
  const Duration without = simulate(schedule, times).makespan;
  times.message = kUnit;  // one more at the beginning, one more at the end
  EXPECT_EQ(simulate(schedule, times).makespan, without + 2 * kUnit);
}

}  // namespace
}  // namespace sherd::schedule
