// Layers on several ranks, with every schedule: losses, norms and weights are bit-identical to one rank, with
// delays at every boundary of a stream, and each rank's memory is as planned.

#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/schedule/generate.h"
#include "tests/support/models/model_forms.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using schedule::Order;

struct Case {
  Order order = Order::k1F1B;
  int ranks = 2, micro_batches = 4, stage = 0;
  int shards = 1, replicas = 1;
  int chunks = 0;  // 0: as few as the order takes
};

engine::TrainingOptions options_of(bool tied = false,
                                   optim::OptimizerType type = optim::OptimizerType::kAdamW) {
  model::ModelShape shape = tiny_model(tied);
  shape.num_layers = 9;
  engine::TrainingOptions options = tiny_training(shape, 0.05f);  // clips
  options.optimizer.type = type;
  options.optimizer.momentum = 0.9f;
  return options;
}

RunShape setup_of(const Case& each) {
  RunShape setup{
      .world_size = each.ranks * each.shards * each.replicas,
      .axes = {{"pipeline", each.ranks}, {"replicate", each.replicas}, {"shard", each.shards}},
      .num_micro_steps = each.micro_batches,
      .stage = each.stage,
      .prefetch_depth = each.stage % 3,
      .delay_seed = 91};
  return setup;
}

engine::TrainingOptions cut(engine::TrainingOptions options, const Case& each) {
  options.pipeline.order = each.order;
  options.pipeline.chunks_per_rank =
      each.chunks > 0 ? each.chunks : schedule::default_chunks_per_rank(each.order);
  return options;
}

// One rank with as many micro-batches in a step.
Outcome on_one_rank(const engine::TrainingOptions& options, const Case& each, int num_steps) {
  return train(options,
               {.num_micro_steps = each.micro_batches * each.shards * each.replicas,
                .batch_groups = each.replicas},
               num_steps);
}

void expect_equal(const engine::TrainingOptions& options, const Case& each, int num_steps = 2) {
  SCOPED_TRACE(fmt::format("{} on {} ranks, {} micro-batches, {} shards, {} replicas",
                           schedule::name_of(each.order), each.ranks, each.micro_batches,
                           each.shards, each.replicas));
  EXPECT_EQ(difference(train(cut(options, each), setup_of(each), num_steps),
                       on_one_rank(options, each, num_steps)),
            "");
}

TEST(Pipeline, EveryScheduleHasTheBitsOfOneRank) {
  const engine::TrainingOptions options = options_of();
  expect_equal(options, {.order = Order::kLayerParallel, .ranks = 3, .micro_batches = 2});
  expect_equal(options, {.order = Order::kGPipe, .ranks = 2, .micro_batches = 3, .stage = 1});
  expect_equal(options, {.order = Order::k1F1B, .ranks = 4, .micro_batches = 6, .stage = 2});
  expect_equal(options, {.order = Order::k1F1B, .ranks = 3, .micro_batches = 1, .stage = 3});
  expect_equal(options,
               {.order = Order::kInterleaved1F1B, .ranks = 2, .micro_batches = 4, .stage = 0});
  expect_equal(options, {.order = Order::kZbH1, .ranks = 3, .micro_batches = 5, .stage = 1});
  expect_equal(options, {.order = Order::kZbV, .ranks = 2, .micro_batches = 5, .stage = 2});
  expect_equal(options, {.order = Order::kZbV, .ranks = 3, .micro_batches = 2, .stage = 3});
  expect_equal(options, {.order = Order::kDualPipeV, .ranks = 2, .micro_batches = 5, .stage = 0});
}

TEST(Pipeline, ZeroStagesShardEachPartsState) {
  const engine::TrainingOptions options = options_of();
  for (int stage = 0; stage <= 3; ++stage) {
    expect_equal(options, {.order = stage % 2 == 0 ? Order::k1F1B : Order::kGPipe,
                           .ranks = 2,
                           .micro_batches = 3,
                           .stage = stage,
                           .shards = 2});
  }
}

TEST(Pipeline, RecomputedActivationsAndEveryOptimizer) {
  constexpr optim::OptimizerType kOptimizers[] = {
      optim::OptimizerType::kSgd,  optim::OptimizerType::kLamb,      optim::OptimizerType::kLars,
      optim::OptimizerType::kMuon, optim::OptimizerType::kAdafactor, optim::OptimizerType::kDion};
  int run = 0;
  for (const optim::OptimizerType type : kOptimizers) {
    engine::TrainingOptions options = options_of(false, type);
    options.model.recompute = static_cast<model::Recompute>(run % 3);
    expect_equal(options, {.order = run % 2 == 0 ? Order::k1F1B : Order::kGPipe,
                           .ranks = 2,
                           .micro_batches = 4,
                           .stage = run % 4,
                           .shards = run == 1 ? 2 : 1});
    ++run;
  }
}

TEST(Pipeline, ReplicasOfAPipelineAddTheirGradientsOnce) {
  expect_equal(options_of(),
               {.ranks = 2, .micro_batches = 2, .stage = 2, .shards = 1, .replicas = 2});
}

// Kernels run after the host has moved on, and work is delayed: a missing wait for a message, or an
// overwritten one, changes the result. Messages are delayed more than anything. Where only the last or the first
// rank computes slowly, the others send it all messages for which it makes room.
TEST(Pipeline, WaitsForEveryMessageAndSlot) {
  const engine::TrainingOptions options = options_of();
  for (const Case& each :
       {Case{.order = Order::kGPipe, .ranks = 3, .micro_batches = 6, .stage = 3},
        Case{.order = Order::kZbV, .ranks = 2, .micro_batches = 5, .stage = 2}}) {
    const Outcome expected = on_one_rank(options, each, 2);
    for (const char* late : {"", "activations", "gradients", "compute"}) {
      RunShape setup = setup_of(each);
      setup.place = RunShape::Place::kApartDeferred;
      setup.slow_stream = late;
      EXPECT_EQ(difference(train(cut(options, each), setup, 2), expected), "")
          << schedule::name_of(each.order) << ", slow " << late;
    }
    for (const int slow : {0, each.ranks - 1}) {
      RunShape setup = setup_of(each);
      setup.place = RunShape::Place::kApartDeferred;
      setup.slow_stream = "compute";
      setup.slow_rank = slow;
      EXPECT_EQ(difference(train(cut(options, each), setup, 2), expected), "")
          << schedule::name_of(each.order) << ", slow rank " << slow;
    }
  }
}

class PipelineForms : public ::testing::TestWithParam<ModelForm> {};
INSTANTIATE_TEST_SUITE_P(Forms, PipelineForms, ::testing::ValuesIn(forms_on_cpus()),
                         [](const auto& info) { return info.param.name; });

TEST_P(PipelineForms, HalvesOfABackwardHaveTheBitsOfTheWhole) {
  for (const auto recompute :
       {model::Recompute::kNone, model::Recompute::kSelective, model::Recompute::kFull}) {
    engine::TrainingOptions options = tiny_training(GetParam().shape);
    if (options.model.tied) continue;
    options.model.recompute = recompute;
    options.model.dtype = recompute == model::Recompute::kNone ? DType::kBF16 : DType::kF32;
    options.precision.parameters = options.model.dtype;
    expect_equal(options, {.order = Order::kZbH1, .ranks = 2, .micro_batches = 3, .stage = 3});
  }
}

TEST(PipelineSlow, EveryScheduleRanksMicroBatchesAndStage) {
  const engine::TrainingOptions options = options_of();
  for (const Order order : schedule::all_orders()) {
    for (const int ranks : {2, 3, 4}) {
      for (int micro_batches = 1; micro_batches <= 10; ++micro_batches) {
        Case each{.order = order, .ranks = ranks, .micro_batches = micro_batches};
        try {
          schedule::generate({.order = order,
                              .num_ranks = ranks,
                              .chunks_per_rank = schedule::default_chunks_per_rank(order),
                              .num_micro_batches = micro_batches});
        } catch (const UsageError&) {
          continue;  // tests/engine/schedule has the refusals
        }
        for (each.stage = 0; each.stage <= 3; ++each.stage) expect_equal(options, each, 3);
        each.stage = micro_batches % 4;
        each.shards = 2;
        expect_equal(options, each, 3);
      }
    }
  }
}

// Head and embedding add to it apart, so the last bits differ; both ranks keep the same copy.
TEST(Pipeline, ATiedMatrixAtBothEndsStaysNearTheSingleRank) {
  const engine::TrainingOptions options = options_of(true);
  for (int stage = 0; stage <= 3; ++stage) {
    const Case each{.ranks = 3, .micro_batches = 4, .stage = stage, .shards = stage == 2 ? 2 : 1};
    const Outcome one = on_one_rank(options, each, 3);
    const Outcome cut_up = train(cut(options, each), setup_of(each), 3);
    for (std::size_t step = 0; step < one.losses.size(); ++step) {
      EXPECT_NEAR(cut_up.losses[step], one.losses[step], 2e-6 * one.losses[step]) << stage;
    }
    for (const auto& [name, values] : one.parameters) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(cut_up.parameters.at(name)[i], values[i], 2e-4) << name << ", stage " << stage;
      }
    }
  }
}

// On one rank or on two, the ends add up their gradients apart, and once per step.
TEST(Pipeline, TiedEndsHaveTheSameBitsOnOneRankAsOnTwo) {
  const engine::TrainingOptions options = options_of(true);
  for (int stage = 0; stage <= 3; ++stage) {
    Case each{.ranks = 2, .micro_batches = 4, .stage = stage, .shards = stage == 2 ? 2 : 1};
    const Outcome on_two = train(cut(options, each), setup_of(each), 3);
    for (const Order order : {Order::kZbV, Order::kDualPipeV}) {
      each.order = order;
      EXPECT_EQ(difference(train(cut(options, each), setup_of(each), 3), on_two), "")
          << schedule::name_of(order) << ", stage " << stage;
    }
  }
}

}  // namespace
}  // namespace sherd::testing
