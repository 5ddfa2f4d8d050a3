// Passes without backwards on ranks that have several chunks each.
#include "engine/schedule/forwards.h"

#include <gtest/gtest.h>

#include "engine/schedule/deadlock.h"
#include "engine/schedule/passes.h"

namespace sherd::schedule {
namespace {

ChunkLayout layout_of(int ranks, int chunks, Placement placement) {
  return {.num_ranks = ranks, .chunks_per_rank = chunks, .placement = placement};
}

TEST(Forwards, NoRankWaitsForeverWithOneSlot) {
  for (int ranks = 2; ranks <= 8; ++ranks) {
    for (int micro_batches = 1; micro_batches <= 40; ++micro_batches) {
      for (const ChunkLayout& layout :
           {layout_of(ranks, 1, Placement::kLooped), layout_of(ranks, 2, Placement::kLooped),
            layout_of(ranks, 3, Placement::kLooped), layout_of(ranks, 2, Placement::kV)}) {
        const auto violation =
            deadlock(with_messages(forwards_only(layout, micro_batches)), {.slots = 1});
        EXPECT_FALSE(violation) << ranks << " ranks, " << layout.chunks_per_rank << " chunks, "
                                << micro_batches << " micro-batches: " << violation->text;
      }
    }
  }
}

// One chunk per rank: after the first micro-batch, every rank has one at a time.
TEST(Forwards, RanksFollowOneAnotherAMicroBatchApart) {
  const Schedule schedule = with_messages(forwards_only(layout_of(3, 1, Placement::kLooped), 2));
  EXPECT_EQ(text_of(schedule),
            "pipeline 3 chunks_per_rank 1 placement looped micro_batches 2 gathers no reduces "
            "never\n"
            "rank 0: 0F0 0SEND_F0 0F1 0SEND_F1\n"
            "rank 1: 1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1\n"
            "rank 2: 2RECV_F0 2F0 2RECV_F1 2F1\n");
}

// Down the ranks and back: the first rank takes what comes back before it begins another.
TEST(Forwards, WhatHasBegunEndsFirst) {
  const Schedule schedule = forwards_only(layout_of(2, 2, Placement::kV), 4);
  EXPECT_EQ(actions_text(schedule.ranks[0]), "0F0 0F1 0F2 3F0 0F3 3F1 3F2 3F3");
  EXPECT_EQ(actions_text(schedule.ranks[1]), "1F0 2F0 1F1 2F1 1F2 2F2 1F3 2F3");
}

}  // namespace
}  // namespace sherd::schedule
