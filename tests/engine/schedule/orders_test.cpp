#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/schedule/validate.h"
#include "tests/engine/schedule/published_orders.h"
#include "tests/engine/schedule/schedule_support.h"
#include "tests/support/values/error_text.h"

namespace sherd::schedule {
namespace {

using test::error_text;
using test::executable;
using test::request;

std::string ranks_text(const Schedule& schedule) {
  const std::string text = text_of(schedule);
  return text.substr(text.find('\n') + 1);
}

TEST(Orders, AreThePublishedOnes) {
  for (const test::PublishedOrder& published : test::kPublishedOrders) {
    const Schedule schedule = generate(request(
        order_from(published.name), 4, published.num_micro_batches, published.chunks_per_rank));
    EXPECT_EQ(ranks_text(schedule), published.ranks) << published.name;
  }
}

// Megatron-LM's documented example: 2 ranks, 5 micro-batches in turns of 3, 2 chunks per rank.
TEST(Orders, InterleavedTurnsMayHaveARest) {
  OrderRequest of = request(Order::kInterleaved1F1B, 2, 5, 2);
  of.micro_batches_per_turn = 3;
  std::vector<int> chunks, micro_batches;
  const Schedule schedule = generate(of);
  for (const Action& action : schedule.ranks[0]) {
    if (action.kind != ActionKind::kForward) continue;
    chunks.push_back(action.chunk / 2);
    micro_batches.push_back(action.micro_batch);
  }
  EXPECT_EQ(chunks, (std::vector<int>{0, 0, 0, 1, 1, 1, 0, 0, 1, 1}));
  EXPECT_EQ(micro_batches, (std::vector<int>{0, 1, 2, 0, 1, 2, 3, 4, 3, 4}));
  EXPECT_FALSE(first_violation(executable(of)));
}

// What engine/train/training_step.cpp does.
TEST(Orders, OneRankRunsOneMicroBatchAfterTheOther) {
  EXPECT_EQ(ranks_text(generate(request(Order::kLayerParallel, 1, 3))),
            "rank 0: 0F0 0B0 0F1 0B1 0F2 0B2\n");
  EXPECT_EQ(generate(request(Order::k1F1B, 1, 3)), generate(request(Order::kLayerParallel, 1, 3)));
}

TEST(Orders, LayerParallelRanksWorkOneAtATime) {
  const Schedule schedule = executable(request(Order::kLayerParallel, 3, 2));
  const Simulation run = simulate(schedule, test::unit_times(schedule.layout));
  EXPECT_EQ(run.makespan, 2 * 3 * 3 * test::kUnit);
  EXPECT_DOUBLE_EQ(run.idle_share(), 2.0 / 3.0);
}

TEST(Orders, AllThatAreMadeCanBeExecuted) {
  int made = 0;
  for (const Order order : all_orders()) {
    for (int ranks = 1; ranks <= 6; ++ranks) {
      for (int micro_batches = 1; micro_batches <= 14; ++micro_batches) {
        for (const int chunks : {1, 2, 3}) {
          Schedule schedule;
          try {
            schedule = generate(request(order, ranks, micro_batches, chunks));
          } catch (const UsageError&) {
            continue;
          }
          ++made;
          // One slot is enough: what a communicator of two ranks has whose receives aren't posted ahead.
          const Rules one_slot{.channels = {.slots = 1}};
          for (const Schedule& each : {schedule, with_whole_backwards(schedule)}) {
            const auto violation = first_violation(with_messages(each), one_slot);
            EXPECT_FALSE(violation) << name_of(order) << ": " << violation->text;
          }
        }
      }
    }
  }
  EXPECT_GT(made, 400);
}

struct Refusal {
  OrderRequest request;
  const char* text;
};

TEST(Orders, RefuseWhatTheyCannotTakeAndNameTheNearestThatTheyCan) {
  const Refusal refusals[] = {
      {request(Order::k1F1B, 4, 8, 2),
       "1f1b takes 1 chunk per rank, not 2; interleaved_1f1b takes more."},
      {request(Order::kInterleaved1F1B, 4, 8, 1),
       "interleaved_1f1b takes 2 or more chunks per rank, not 1; 1f1b takes 1."},
      {request(Order::kZbV, 4, 8, 3),
       "zb_v takes 2 chunks per rank, not 3: one for the way down the ranks, one back."},
      {request(Order::kInterleaved1F1B, 4, 10, 2),
       "interleaved_1f1b takes micro-batches in multiples of its 4 ranks, not 10; the nearest: 8 "
       "or "
       "12."},
      {request(Order::kInterleaved1F1B, 4, 3, 2),
       "interleaved_1f1b takes micro-batches in multiples of its 4 ranks, not 3; the nearest: 4."},
      {request(Order::kDualPipeV, 4, 7),
       "dualpipe_v takes at least 2 micro-batches per rank, so 8 on 4 ranks, not 7; zb_v takes "
       "fewer."},
      {request(Order::kGPipe, 2, 0), "gpipe: the number of micro-batches is 0; 1 is the least."},
      {request(Order::kGPipe, 0, 2), "gpipe: the number of pipeline ranks is 0; 1 is the least."},
      {{.order = Order::kInterleaved1F1B,
        .num_ranks = 2,
        .chunks_per_rank = 2,
        .num_micro_batches = 5,
        .micro_batches_per_turn = 4},
       "interleaved_1f1b in turns of 4 leaves 1 of 5 micro-batches for the last turn, fewer than "
       "its "
       "2 ranks; 4 micro-batches are the nearest."},
      {{.order = Order::kInterleaved1F1B,
        .num_ranks = 4,
        .chunks_per_rank = 2,
        .num_micro_batches = 8,
        .micro_batches_per_turn = 3},
       "interleaved_1f1b takes turns of 4 to 8 micro-batches here, not 3."},
  };
  for (const Refusal& refusal : refusals) {
    EXPECT_EQ(error_text<UsageError>([&] { generate(refusal.request); }), refusal.text);
  }
  EXPECT_EQ(error_text<UsageError>([] { order_from("zbv"); }),
            "there is no pipeline schedule \"zbv\"; there are layer_parallel, gpipe, 1f1b, "
            "interleaved_1f1b, zb_h1, zb_v, dualpipe_v.");
}

TEST(Orders, ZbVTakesFewerMicroBatchesThanRanks) {
  const Schedule schedule = generate(request(Order::kZbV, 4, 1));
  EXPECT_EQ(ranks_text(schedule),
            "rank 0: 0F0 7F0 7I0 7W0 0I0 0W0\n"
            "rank 1: 1F0 6F0 6I0 6W0 1I0 1W0\n"
            "rank 2: 2F0 5F0 5I0 5W0 2I0 2W0\n"
            "rank 3: 3F0 4F0 4I0 4W0 3I0 3W0\n");
}

}  // namespace
}  // namespace sherd::schedule
