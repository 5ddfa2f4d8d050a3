// Slots that a rank's list hands out, against what engine/schedule counts of the same list, and papers of
// the same schedules.
#include "engine/train/layout/slot_book.h"

#include <gtest/gtest.h>

#include "engine/schedule/generate.h"
#include "engine/schedule/peaks.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

constexpr int kLayersPerChunk = 2;

engine::TrainingOptions options_of(schedule::Order order, int ranks, int micro_batches) {
  model::ModelShape shape = tiny_model(false);
  const int chunks = schedule::default_chunks_per_rank(order);
  shape.num_layers = kLayersPerChunk * ranks * chunks;
  engine::TrainingOptions options = tiny_training(shape);
  options.num_micro_steps = micro_batches;
  options.pipeline = {order, chunks,
                      std::vector<int>(static_cast<std::size_t>(ranks * chunks), kLayersPerChunk)};
  return options;
}

TEST(SlotBook, KeepsWhatTheScheduleCountsAndNoMore) {
  for (const schedule::Order order : schedule::all_orders()) {
    for (const int ranks : {2, 3, 4}) {
      const engine::TrainingOptions options = options_of(order, ranks, 2 * ranks + ranks);
      const sharding::Mesh mesh({{"pipeline", ranks}});
      for (int rank = 0; rank < ranks; ++rank) {
        const engine::RankPipeline pipeline = engine::rank_pipeline(options, mesh, rank);
        const schedule::Peak peak =
            schedule::peaks_by_rank(*pipeline.plan.schedule)[static_cast<std::size_t>(rank)];
        const engine::SlotCounts counts = engine::count_slots(pipeline, false);
        EXPECT_EQ(counts.kept, kLayersPerChunk * peak.kept) << schedule::name_of(order) << rank;
        EXPECT_EQ(counts.waiting, kLayersPerChunk * peak.waiting) << schedule::name_of(order);
      }
    }
  }
}

// PARALLELISM.md C.1: 1F1B keeps as many micro-batches as ranks follow, GPipe all of them.
TEST(SlotBook, FirstRankOf1F1BKeepsOneMicroBatchPerRank) {
  for (const int ranks : {2, 3, 4}) {
    const sharding::Mesh mesh({{"pipeline", ranks}});
    const auto kept = [&](schedule::Order order, int rank) {
      return engine::count_slots(engine::rank_pipeline(options_of(order, ranks, 8), mesh, rank),
                                 false)
                 .kept /
             kLayersPerChunk;
    };
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(kept(schedule::Order::k1F1B, rank), ranks - rank);
      EXPECT_EQ(kept(schedule::Order::kGPipe, rank), 8);
      EXPECT_EQ(kept(schedule::Order::kLayerParallel, rank), 1);
    }
  }
}

}  // namespace
}  // namespace sherd::testing
