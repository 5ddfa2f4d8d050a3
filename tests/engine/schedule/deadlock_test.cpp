#include "engine/schedule/deadlock.h"

#include <gtest/gtest.h>

#include "tests/engine/schedule/event_machine.h"
#include "tests/engine/schedule/schedule_support.h"

namespace sherd::schedule {
namespace {

using test::executable;
using test::request;

constexpr int kNoneIsEnough = -1;

// Rank 0 of 1F1B sends a second forward while rank 1 sends its first gradient: each waits for the
// other to receive.
TEST(Deadlock, NamesEveryRankThatWaits) {
  const Schedule schedule = executable(request(Order::k1F1B, 2, 2));
  const auto violation = deadlock(schedule, {.slots = 0});
  ASSERT_TRUE(violation);
  EXPECT_EQ(
      violation->text,
      "no rank can continue: rank 0 waits at position 3 (0SEND_F1), rank 1 waits at position 3 "
      "(1SEND_B0).");
  EXPECT_EQ(violation->rank, 0);
  EXPECT_EQ(violation->position, 3);
}

// The fewest slots with which it runs.
int slots_needed(const Schedule& schedule, ChannelsBy by) {
  const int all = 2 * schedule.num_micro_batches * schedule.layout.num_chunks();
  for (const int slots : {0, 1, 2, all}) {
    if (!deadlock(schedule, {by, slots})) return slots;
  }
  return kNoneIsEnough;
}

struct Row {
  Order order;
  int chunks_per_rank;
  int ranks;
  int slots_by_pair;  ///< as another simulator found them
};

constexpr Row kRows[] = {
    {Order::kGPipe, 1, 2, 0},
    {Order::kGPipe, 1, 4, 0},
    {Order::kGPipe, 1, 8, 0},
    {Order::k1F1B, 1, 2, 1},
    {Order::k1F1B, 1, 4, 1},
    {Order::k1F1B, 1, 8, 1},
    {Order::kZbH1, 1, 2, 1},
    {Order::kZbH1, 1, 4, 1},
    {Order::kZbH1, 1, 8, 1},
    {Order::kInterleaved1F1B, 2, 2, 2},
    {Order::kInterleaved1F1B, 4, 2, 2},
    {Order::kInterleaved1F1B, 2, 4, 1},
    {Order::kInterleaved1F1B, 4, 4, 1},
    {Order::kInterleaved1F1B, 2, 8, 1},
    {Order::kInterleaved1F1B, 4, 8, 1},
    {Order::kZbV, 2, 4, kNoneIsEnough},
    {Order::kZbV, 2, 8, kNoneIsEnough},
    {Order::kDualPipeV, 2, 4, kNoneIsEnough},
    {Order::kDualPipeV, 2, 8, kNoneIsEnough},
};

TEST(Deadlock, OneChannelPerPairOfRanksNeedsTheSlotsThatAnotherSimulatorFound) {
  for (const auto [order, chunks, ranks, slots] : kRows) {
    for (int micro_batches = 2 * ranks; micro_batches <= 32; micro_batches += ranks) {
      const Schedule schedule = executable(request(order, ranks, micro_batches, chunks));
      EXPECT_EQ(slots_needed(schedule, ChannelsBy::kRankPair), slots)
          << name_of(order) << " on " << ranks << " ranks, " << micro_batches << " micro-batches";
    }
  }
}

TEST(Deadlock, OneChannelPerBoundaryAndDirectionNeverBlocksWithTwoSlots) {
  for (const auto [order, chunks, ranks, ignored] : kRows) {
    for (int micro_batches = 1; micro_batches <= 32; ++micro_batches) {
      if (order == Order::kInterleaved1F1B && micro_batches % ranks != 0) continue;
      if (order == Order::kDualPipeV && micro_batches < 2 * ranks) continue;
      const Schedule schedule = executable(request(order, ranks, micro_batches, chunks));
      EXPECT_FALSE(deadlock(schedule, {.slots = 2}))
          << name_of(order) << " on " << ranks << " ranks, " << micro_batches << " micro-batches";
    }
  }
}

// One slot is enough as well, and none is enough for gpipe alone: the machine that executes them says so.
TEST(Deadlock, AMachineThatExecutesThemNeedsAsManySlots) {
  for (const auto [order, chunks, ranks, ignored] : kRows) {
    const Schedule schedule = executable(request(order, ranks, 2 * ranks, chunks));
    for (const int slots : {0, 1, 2}) {
      const auto outcome =
          test::EventMachine(text_of(schedule), static_cast<std::size_t>(slots), 5).run();
      const bool runs = slots > 0 || order == Order::kGPipe;
      EXPECT_EQ(outcome,
                runs ? test::EventMachine::Outcome::kGood : test::EventMachine::Outcome::kStuck)
          << name_of(order) << " on " << ranks << " ranks, " << slots << " slots";
      EXPECT_EQ(deadlock(schedule, {.slots = slots}).has_value(), !runs);
    }
  }
}

}  // namespace
}  // namespace sherd::schedule
