// Each step names the rank that worked longest.

#include <gtest/gtest.h>

#include <thread>

#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

TEST(SlowestRank, IsTheOneWhoseOwnTimeIsLongest) {
  const engine::SlowestRank odd = engine::slowest_of({10.0, 40.0, 20.0});
  EXPECT_EQ(odd.rank, 1);
  EXPECT_EQ(odd.own_ms, 40.0);
  EXPECT_EQ(odd.median_ms, 20.0);
  const engine::SlowestRank even = engine::slowest_of({30.0, 10.0, 20.0, 30.0});
  EXPECT_EQ(even.rank, 0);
  EXPECT_EQ(even.median_ms, 25.0);
}

// Its batches are late, which the others wait for in their exchanges with it.
TEST(SlowestRank, IsFoundByEveryRankThoughAllStepsTakeEquallyLong) {
  constexpr int kSlow = 2;
  constexpr double kDelay = 400.0;
  engine::TrainingOptions options = applied(tiny_training(tiny_model(true)), {.stage = 2});
  run_ranks({.world_size = 3, .stage = 2}, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep training_step(options, model);
    std::vector<std::int32_t> memory;
    const engine::NextBatch tokens = tokens_for(options, rank, memory);
    const engine::NextBatch late = [&](std::int64_t step, std::int64_t micro_step) {
      if (rank.rank == kSlow) {
        std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(kDelay));
      }
      return tokens(step, micro_step);
    };
    rank.guard([&] {
      for (std::int64_t step = 0; step < 3; ++step) {
        const engine::StepResult result = training_step.run(step, late);
        ASSERT_TRUE(result.slowest);
        EXPECT_EQ(result.slowest->rank, kSlow) << "step " << step << " on rank " << rank.rank;
        EXPECT_GE(result.slowest->own_ms, kDelay);
        EXPECT_LT(result.slowest->median_ms, result.slowest->own_ms);
      }
    });
  });
  run_ranks({.world_size = 1}, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep training_step(options, model);
    std::vector<std::int32_t> memory;
    rank.guard(
        [&] { EXPECT_FALSE(training_step.run(0, tokens_for(options, rank, memory)).slowest); });
  });
}

}  // namespace
}  // namespace sherd::testing
