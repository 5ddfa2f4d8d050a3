// Micro-batches are added in one chain, in their order in the batch, however many ranks there are; with
// groups of the batch, in a chain for each group. So the size of the world changes no bit of losses, norms and
// weights, and neither does hybrid sharding against a plain world with as many groups.

#include <gtest/gtest.h>

#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

constexpr int kMicroBatches = 12;

engine::TrainingOptions options_of(optim::OptimizerType type, bool tied = true,
                                   DType dtype = DType::kF32) {
  model::ModelShape shape = tiny_model(tied);
  shape.dtype = dtype;
  shape.dropout = 0.1;
  engine::TrainingOptions options = tiny_training(shape, 0.05f);  // clips
  options.optimizer.type = type;
  options.optimizer.momentum = 0.9f;
  options.precision.parameters = dtype;
  return options;
}

RunShape plain(int world, int stage) {
  return {.world_size = world,
          .num_micro_steps = kMicroBatches / world,
          .stage = stage,
          .prefetch_depth = stage % 3,
          .delay_seed = world > 1 ? 70u + static_cast<unsigned>(world) : 0u};
}

RunShape hybrid(int replicas, int shards, int stage) {
  RunShape setup = plain(replicas * shards, stage);
  setup.axes = {{"replicate", replicas}, {"shard", shards}};
  return setup;
}

RunShape in_groups(RunShape setup, int groups) {
  setup.batch_groups = groups;
  return setup;
}

constexpr optim::OptimizerType kOptimizers[] = {
    optim::OptimizerType::kAdamW, optim::OptimizerType::kAdam,      optim::OptimizerType::kSgd,
    optim::OptimizerType::kLion,  optim::OptimizerType::kLamb,      optim::OptimizerType::kLars,
    optim::OptimizerType::kMuon,  optim::OptimizerType::kAdafactor, optim::OptimizerType::kDion};

void expect_equal(const engine::TrainingOptions& options, const Outcome& expected,
                  const RunShape& setup, int num_steps) {
  EXPECT_EQ(difference(train(options, setup, num_steps), expected), "")
      << name_of(setup) << ", optimizer " << static_cast<int>(options.optimizer.type);
}

TEST(Chain, EveryWorldHasTheBitsOfOneRankWithEveryOptimizer) {
  int run = 0;
  for (const optim::OptimizerType type : kOptimizers) {
    const engine::TrainingOptions options = options_of(type, run % 2 == 0);
    const Outcome expected = train(options, plain(1, 0), 2);
    for (const int world : {2, 3, 4, 6}) {
      if ((run + world) % 2 == 0) continue;  // the slow test has all
      expect_equal(options, expected, plain(world, (run + world / 2) % 4), 2);
    }
    ++run;
  }
}

TEST(Chain, HoldsInBF16WhereGradientsAreAddedInF32) {
  const engine::TrainingOptions options =
      options_of(optim::OptimizerType::kAdamW, false, DType::kBF16);
  engine::TrainingOptions narrow = options;
  narrow.precision.reduce = DType::kBF16;
  for (const engine::TrainingOptions& each : {options, narrow}) {
    const Outcome expected = train(each, plain(1, 2), 2);
    for (const int world : {3, 4}) {
      for (const int stage : {1, 3}) expect_equal(each, expected, plain(world, stage), 2);
    }
  }
}

// 12 micro-batches in R groups on one rank; the same dealt to more ranks, and to R replicas.
TEST(Chain, HybridShardingHasTheBitsOfAPlainWorldWithAsManyGroups) {
  int run = 0;
  for (const int groups : {2, 3}) {
    const engine::TrainingOptions options = options_of(kOptimizers[4 * (groups - 2)], groups == 2);
    const Outcome expected = train(options, in_groups(plain(1, 1), groups), 2);
    for (const int world : {2, 4, 6}) {
      expect_equal(options, expected, in_groups(plain(world, run++ % 4), groups), 2);
    }
    for (const int shards : {1, 2}) {
      for (const int stage : {run % 2, 2 + run % 2}) {
        expect_equal(options, expected, hybrid(groups, shards, stage), 2);
      }
      ++run;
    }
    EXPECT_NE(difference(train(options, plain(4, 2), 2), expected), "")
        << "one group is another sum";
  }
}

// Groups that end inside a micro-step, and several in one.
TEST(Chain, GroupsMayEndAnywhereInAMicroStep) {
  const engine::TrainingOptions options = options_of(optim::OptimizerType::kAdamW);
  for (const int micro_steps : {1, 3}) {
    for (const int groups : {2, 4}) {
      const RunShape one{.world_size = 1, .num_micro_steps = 4 * micro_steps};
      const Outcome expected = train(options, in_groups(one, groups), 2);
      for (int stage = 0; stage <= 3; ++stage) {
        RunShape four{.world_size = 4, .num_micro_steps = micro_steps, .stage = stage};
        expect_equal(options, expected, in_groups(four, groups), 2);
      }
      RunShape apart{.world_size = 4, .num_micro_steps = micro_steps, .stage = 3};
      apart.place = RunShape::Place::kApart;
      expect_equal(options, expected, in_groups(apart, groups), 2);
    }
  }
}

// One micro-step: at stages 0 and 1 the gradient is written into the accumulator itself.
TEST(Chain, HybridShardingOfOneMicroStepHasThemAtTheBoundaryToo) {
  const engine::TrainingOptions options = options_of(optim::OptimizerType::kAdamW);
  RunShape four{.world_size = 4, .stage = 2};
  const Outcome expected = train(options, in_groups(four, 2), 2);
  for (int stage = 0; stage <= 3; ++stage) {
    for (const auto sync : {sharding::GradSync::kBoundary, sharding::GradSync::kEveryMicroStep}) {
      RunShape setup{.world_size = 4, .axes = {{"replicate", 2}, {"shard", 2}}, .stage = stage};
      setup.grad_sync = sync;
      expect_equal(options, expected, setup, 2);
    }
  }
}

TEST(ChainSlow, EveryWorldStageAndOptimizerOverTwentySteps) {
  for (const optim::OptimizerType type : kOptimizers) {
    for (const bool tied : {false, true}) {
      const engine::TrainingOptions options = options_of(type, tied);
      const Outcome expected = train(options, plain(1, 0), 20);
      for (const int world : {1, 2, 3, 4, 6}) {
        for (int stage = 0; stage <= 3; ++stage) {
          expect_equal(options, expected, plain(world, stage), 20);
        }
      }
    }
  }
}

TEST(ChainSlow, EveryFormOfHybridShardingOverTenSteps) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int groups : {2, 3, 4}) {
      const engine::TrainingOptions options =
          options_of(optim::OptimizerType::kAdamW, groups % 2 == 0, dtype);
      const Outcome expected = train(options, in_groups(plain(1, 0), groups), 10);
      for (int stage = 0; stage <= 3; ++stage) {
        for (const int world : {2, 3, 4, 6, 12}) {
          expect_equal(options, expected, in_groups(plain(world, stage), groups), 10);
        }
        for (const int shards : {1, 2, 3}) {
          if (kMicroBatches % (groups * shards) != 0) continue;
          expect_equal(options, expected, hybrid(groups, shards, stage), 10);
        }
      }
    }
  }
}

}  // namespace
}  // namespace sherd::testing
