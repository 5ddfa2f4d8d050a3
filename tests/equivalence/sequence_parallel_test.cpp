// Runs whose tensor ranks share the tokens of the residual stream: near the run of one rank, which they begin with
// the loss of, and bit for bit equal to one another however their state is sharded; memory as planned.

#include <gtest/gtest.h>

#include "tests/equivalence/near_one_rank.h"
#include "tests/support/models/model_forms.h"

namespace sherd::testing {
namespace {

using Case = MeshCase;

// 18 tokens, which 4 ranks can't share evenly.
engine::TrainingOptions options_of(bool tied,
                                   optim::OptimizerType type = optim::OptimizerType::kAdamW) {
  model::ModelShape shape = tiny_model(tied);
  shape.ffn_width = 36;
  shape.part.sequence_parallel = true;
  engine::TrainingOptions options = tiny_training(shape, 0.5f);  // clips
  options.optimizer.type = type;
  options.optimizer.momentum = 0.9f;
  if (type == optim::OptimizerType::kSgd) options.lr_schedule.lr = 0.05;
  return options;
}

// The same batch on tensor and context ranks alone.
Outcome unsharded(const engine::TrainingOptions& options, const Case& each, int num_steps = 3) {
  return same_batch(options, each, {.context = each.context, .tensor = each.tensor}, num_steps);
}

// PARALLELISM.md B.4 #1: gradients of norms that are a rank's tokens' alone. SGD: a weight moves in proportion to its
// gradient, so no rounding is blown up.
TEST(SequenceParallel, RunsBeginWithTheLossOfTensorRanksAndStayNearOneRank) {
  for (const bool tied : {false, true}) {
    const engine::TrainingOptions options = options_of(tied, optim::OptimizerType::kSgd);
    const Outcome one = run(options, {.tensor = 1, .micro_steps = 2});
    engine::TrainingOptions whole = options;
    whole.model.part.sequence_parallel = false;
    for (const int tensor : {2, 4}) {
      const Case each{.tensor = tensor, .micro_steps = 2};
      const Outcome shared = run(options, each);
      EXPECT_EQ(shared.losses[0], run(whole, each, 1).losses[0]) << name_of(each);
      expect_near(options, shared, one, 1e-5, name_of(each));
    }
  }
}

TEST(SequenceParallel, StagesShardsReplicasAndPipelinesKeepTheBits) {
  for (const bool tied : {false, true}) {
    const engine::TrainingOptions options = options_of(tied);
    for (const Case& each :
         {Case{.tensor = 2, .shards = 2, .stage = 0},
          Case{.tensor = 2, .shards = 2, .stage = 1, .micro_steps = 2},
          Case{.tensor = 4, .shards = 2, .stage = 2}, Case{.tensor = 2, .shards = 3, .stage = 3},
          Case{.tensor = 2, .shards = 2, .replicas = 2, .stage = 3}}) {
      EXPECT_EQ(difference(run(options, each), unsharded(options, each)), "") << name_of(each);
    }
    if (tied) continue;  // both ends of a pipeline would add their gradients once per step
    for (const Case& each : {Case{.tensor = 2, .pipeline = 3, .stage = 1, .micro_steps = 4},
                             Case{.tensor = 2,
                             .shards = 2,
                             .pipeline = 2,
                             .stage = 3,
                             .micro_steps = 3,
                             .order = schedule::Order::kZbH1},
                             Case{.tensor = 4, .pipeline = 2, .stage = 2, .micro_steps = 2}}) {
      EXPECT_EQ(difference(run(options, each), unsharded(options, each)), "") << name_of(each);
    }
  }
}

TEST(SequenceParallel, ContextRanksShareTheTokensOfTheirPositions) {
  engine::TrainingOptions options = options_of(false, optim::OptimizerType::kSgd);
  options.model.sequences = 1;
  options.model.seq_length = 12;
  options.model.kv_heads = 4;
  const Outcome one = run(options, {.tensor = 1});
  const Case both{.context = 2, .tensor = 2};
  expect_near(options, run(options, both), one, 1e-5, name_of(both));
  for (const Case& each :
       {Case{.context = 2, .tensor = 2, .shards = 2, .stage = 3},
        Case{.context = 2, .tensor = 2, .pipeline = 2, .stage = 1, .micro_steps = 2}}) {
    EXPECT_EQ(difference(run(options, each), unsharded(options, each)), "") << name_of(each);
  }
}

class SequenceParallelForms : public ::testing::TestWithParam<ModelForm> {};
INSTANTIATE_TEST_SUITE_P(Forms, SequenceParallelForms, ::testing::ValuesIn(tensor_rank_forms()),
                         [](const auto& info) { return info.param.name; });

TEST_P(SequenceParallelForms, KeepTheBitsHoweverTheyAreShardedAndRecomputed) {
  model::ModelShape form = GetParam().shape;
  form.part.sequence_parallel = true;
  expect_bits_however_recomputed(options_of(false), form);
}

TEST(SequenceParallel, OptimizersThatNeedWholeTensorsAreRight) {
  for (const auto& [type, tolerance] : {std::pair(optim::OptimizerType::kLamb, 1e-2),
                                        {optim::OptimizerType::kLars, 1e-5},
                                        {optim::OptimizerType::kMuon, 1e-2}}) {
    engine::TrainingOptions options = options_of(false, type);
    const Outcome one = run(options, {.tensor = 1, .micro_steps = 2});
    for (const Case& each :
         {Case{.tensor = 4, .micro_steps = 2}, Case{.tensor = 2, .shards = 2, .stage = 3}}) {
      const Outcome cut = run(options, each);
      const std::string label = fmt::format("{}, {}", name_of(each), static_cast<int>(type));
      expect_near(options, cut, one, tolerance, label);
      EXPECT_EQ(difference(cut, unsharded(options, each)), "") << label;
    }
  }
}

}  // namespace
}  // namespace sherd::testing
