// Replicas that divide the optimizer's state are bit-identical to replicas that hold copies of it: every element is summed
// in the same order and updated once, wherever.

#include <gtest/gtest.h>

#include "engine/model/cut/tensor_cut.h"
#include "tests/equivalence/mesh_case.h"
#include "tests/support/models/model_forms.h"

namespace sherd::testing {
namespace {

using optim::OptimizerType;
using Case = MeshCase;

engine::TrainingOptions options_of(OptimizerType type, bool tied, DType dtype = DType::kF32) {
  model::ModelShape shape = tiny_model(tied);
  shape.dtype = dtype;
  shape.dropout = 0.1;
  engine::TrainingOptions options = tiny_training(shape, 0.05f);  // clips
  options.optimizer.type = type;
  options.optimizer.momentum = 0.9f;
  options.precision.parameters = dtype;
  return options;
}

// As one rank with as many groups of the batch, tensor ranks aside.
void expect_bits(const engine::TrainingOptions& options, Case each, int num_steps = 2) {
  each.divides_optimizer = true;
  const Outcome expected =
      same_batch(options, each, {.context = each.context, .tensor = each.tensor}, num_steps);
  EXPECT_EQ(difference(run(options, each, num_steps), expected), "") << name_of(each);
}

TEST(DividedReplicas, HaveTheBitsOfOneRankWithEveryOptimizerThatMayDoSo) {
  int stage = 0;
  for (const OptimizerType type :
       {OptimizerType::kAdamW, OptimizerType::kAdam, OptimizerType::kSgd, OptimizerType::kLion,
        OptimizerType::kLamb, OptimizerType::kLars, OptimizerType::kAdafactor}) {
    for (const int shards : {1, 2}) {
      expect_bits(options_of(type, stage % 2 == 0),
                  {.shards = shards, .replicas = 2, .stage = 1 + stage++ % 3, .micro_steps = 2});
    }
    ++stage;
  }
}

TEST(DividedReplicas, HaveThemInEveryPrecision) {
  for (const DType reduce : {DType::kF32, DType::kBF16}) {
    engine::TrainingOptions options = options_of(OptimizerType::kAdamW, true, DType::kBF16);
    options.precision.reduce = reduce;
    options.optimizer.moment_type = {DType::kBF16, true, 5};
    for (int stage = 1; stage <= 3; ++stage) {
      expect_bits(options, {.shards = 2, .replicas = 3, .stage = stage, .micro_steps = 2}, 3);
    }
  }
}

TEST(DividedReplicas, HaveThemWhereGradientsAreReducedAtTheBoundary) {
  const engine::TrainingOptions options = options_of(OptimizerType::kAdamW, false);
  for (int stage = 1; stage <= 3; ++stage) {
    RunShape setup{.world_size = 4,
                   .axes = {{"replicate", 2}, {"shard", 2}},
                   .num_micro_steps = 2,
                   .stage = stage};
    setup.grad_sync = sharding::GradSync::kBoundary;
    const Outcome copies = train(options, setup, 2);
    setup.divides_optimizer = true;
    for (const int depth : {0, 2}) {
      for (const bool reshard : {false, true}) {
        setup.prefetch_depth = depth;
        setup.reshard_after_forward = reshard;
        EXPECT_EQ(difference(train(options, setup, 2), copies), "") << name_of(setup);
      }
    }
  }
}

// A device whose memory isn't the host's, and one whose work is postponed as long as possible.
TEST(DividedReplicas, WaitForWhatTheyReadOnAnyDevice) {
  const engine::TrainingOptions options = options_of(OptimizerType::kAdamW, true, DType::kBF16);
  for (int stage = 1; stage <= 3; ++stage) {
    RunShape setup{.world_size = 4,
                   .axes = {{"replicate", 2}, {"shard", 2}},
                   .num_micro_steps = 2,
                   .stage = stage};
    const Outcome copies = train(options, setup, 3);
    setup.divides_optimizer = true;
    for (const auto place : {RunShape::Place::kApart, RunShape::Place::kApartDeferred}) {
      setup.place = place;
      EXPECT_EQ(difference(train(options, setup, 3), copies), "") << name_of(setup);
    }
    for (const char* late : {"gather", "reduce"}) {
      setup.place = RunShape::Place::kHost;
      setup.late_stream = late;
      EXPECT_EQ(difference(train(options, setup, 3), copies), "") << name_of(setup);
    }
  }
}

TEST(DividedReplicas, WorkWithEveryOtherAxis) {
  model::ModelShape shape = cuttable_form("llama");
  shape.num_layers = 4;
  shape.seq_length = 8;
  engine::TrainingOptions options = tiny_training(shape, 0.05f);
  for (const Case& each : {Case{.replicas = 2, .pipeline = 2, .stage = 3, .micro_steps = 2},
                           Case{.shards = 2,
                           .replicas = 2,
                           .pipeline = 2,
                           .stage = 2,
                           .micro_steps = 2,
                           .order = schedule::Order::kZbV},
                           Case{.tensor = 2, .shards = 2, .replicas = 2, .stage = 3},
                           Case{.context = 2, .replicas = 2, .stage = 3},
                           Case{.context = 2, .shards = 2, .replicas = 2, .stage = 1}}) {
    expect_bits(options, each);
  }
}

// A tied matrix at both ends of a pipeline: on two ranks, and on one that sums both ends apart.
TEST(DividedReplicas, AddUpTheEndsOfATiedMatrix) {
  model::ModelShape shape = cuttable_form("gpt2");
  shape.num_layers = 4;
  shape.head_size = 8;
  model::sum_canonically(shape);
  const engine::TrainingOptions options = tiny_training(shape, 0.05f);
  for (const auto order : {schedule::Order::k1F1B, schedule::Order::kZbV}) {
    for (const int stage : {1, 3}) {
      expect_bits(options,
                  {.replicas = 2, .pipeline = 2, .stage = stage, .micro_steps = 4, .order = order});
    }
  }
}

// Frozen parameters are sharded over the ZeRO group alone.
TEST(DividedReplicas, HaveThemWithFrozenAndQuantisedParameters) {
  for (const bool quantised : {false, true}) {
    model::ModelShape shape = tiny_model(true);
    shape.adapter = {.rank = 2, .targets = {"attention.query", "mlp.down"}};
    shape.adapter.trained_modules = {"final_norm"};
    engine::TrainingOptions options = tiny_training(shape);
    options.nf4_base = quantised;
    for (int stage = 1; stage <= 3; ++stage) {
      expect_bits(options, {.shards = 2, .replicas = 2, .stage = stage});
    }
  }
}

}  // namespace
}  // namespace sherd::testing
