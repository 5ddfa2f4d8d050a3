// What the plan says that tensor and context ranks send inside layers, against what they send.

#include <gtest/gtest.h>

#include <functional>

#include "engine/model/cut/tensor_cut.h"
#include "engine/schedule/order.h"
#include "tests/support/runs/counted_training.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

// Two shards, a pipeline or none, each stage and two ways of recomputing; `vary` makes the model's form.
void expect_tensor_ranks_as_planned(
    const std::function<void(model::ModelShape&, int stage, int pipeline)>& vary) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int pipeline : {1, 2}) {
      for (const auto recompute : {model::Recompute::kNone, model::Recompute::kFull}) {
        model::ModelShape shape = tiny_model(stage % 2 == 0);
        shape.num_layers = 4;
        shape.recompute = recompute;
        shape.dtype = stage == 2 ? DType::kBF16 : DType::kF32;
        vary(shape, stage, pipeline);
        engine::TrainingOptions options = tiny_training(shape);
        options.precision.parameters = shape.dtype;
        options.pipeline.order = stage == 3 ? schedule::Order::kZbH1 : schedule::Order::k1F1B;
        options.optimizer.type =
            stage == 1 ? optim::OptimizerType::kMuon : optim::OptimizerType::kLamb;
        const int tensor = stage == 3 ? 4 : 2;
        expect_steps_as_planned(options,
                                {.world_size = pipeline * 2 * tensor,
                                 .axes = {{"pipeline", pipeline}, {"shard", 2}, {"tensor", tensor}},
                                 .num_micro_steps = 3,
                                 .stage = stage});
      }
    }
  }
}

// What a backward computes again is sent again, too: in a pipeline, activations that have been overwritten.
TEST(Traffic, OfTensorRanksHasTheirExchangesInsideLayers) {
  expect_tensor_ranks_as_planned([](model::ModelShape& shape, int stage, int pipeline) {
    shape.ffn_width = 40;
    shape.head_size = 8;
    if ((stage + pipeline) % 2 == 0) model::sum_canonically(shape);
    shape.qk_norm = stage == 1 ? model::QkNorm::kHead : model::QkNorm::kNone;
  });
}

// Messages of a pipeline are a rank's rows alone.
TEST(Traffic, OfTensorRanksThatShareTokensHasGathersAndReduceScatters) {
  expect_tensor_ranks_as_planned([](model::ModelShape& shape, int, int) {
    shape.ffn_width = 36;
    shape.part.sequence_parallel = true;
  });
}

// One gradient for each target. Of the lowest block, with nothing to train but in its MLP, or in its attention but not
// before, some exchanges of a backward aren't made.
void adapt(model::ModelShape& shape, int which) {
  const bool fused = shape.tied;
  shape.adapter = {.rank = 2, .dropout = 0.1};
  shape.adapter.targets = {"mlp.down"};
  if (which % 3 > 0) shape.adapter.targets.push_back(fused ? "attention.qkv" : "attention.key");
  if (which % 3 > 1) {
    shape.adapter.targets.insert(shape.adapter.targets.end(), {"attention.output", "mlp.up"});
    shape.adapter.trained_modules = {"norm1", "final_norm", "attention.query_norm"};
  }
}

TEST(Traffic, OfTensorRanksHasTheGradientsOfAdapters) {
  expect_tensor_ranks_as_planned([](model::ModelShape& shape, int stage, int pipeline) {
    shape.ffn_width = 40;
    shape.head_size = 8;
    shape.qk_norm = stage == 1 ? model::QkNorm::kHead : model::QkNorm::kNone;
    shape.part.sequence_parallel = stage > 1;
    adapt(shape, stage + pipeline);
    if (shape.qk_norm == model::QkNorm::kNone && !shape.adapter.trained_modules.empty()) {
      shape.adapter.trained_modules.pop_back();
    }
  });
}

TEST(Traffic, OfCanonicalSumsThatTakeTheWayOfRowsIsF32) {
  expect_tensor_ranks_as_planned([](model::ModelShape& shape, int stage, int) {
    shape.ffn_width = 40;
    shape.head_size = 8;
    shape.sequences = 1;
    shape.seq_length = 8;
    shape.part.sequence_parallel = true;
    shape.qk_norm = stage == 1 ? model::QkNorm::kHead : model::QkNorm::kNone;
    model::sum_canonically(shape);
  });
}

// Of 128 tokens at width 24 there are several chunks.
TEST(Traffic, OfChunksOfGroupsIsThatOfEachSequence) {
  expect_tensor_ranks_as_planned([](model::ModelShape& shape, int, int) {
    shape.ffn_width = 40;
    shape.head_size = 8;
    shape.sequences = 16;
    shape.seq_length = 8;
    shape.num_layers = 2;
    shape.dropout = 0.0;
    model::sum_canonically(shape);
  });
}

class ContextTraffic : public ::testing::TestWithParam<model::ContextMethod> {};
INSTANTIATE_TEST_SUITE_P(Methods, ContextTraffic,
                         ::testing::Values(model::ContextMethod::kUlysses,
                                           model::ContextMethod::kAllGather,
                                           model::ContextMethod::kRing));

// PARALLELISM.md B.4 #24: an axis that is silently off sends nothing.
TEST_P(ContextTraffic, IsWhatAttentionExchanges) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int pipeline : {1, 2}) {
      for (const auto recompute : {model::Recompute::kNone, model::Recompute::kFull}) {
        model::ModelShape shape = tiny_model(stage % 2 == 0);
        shape.num_layers = 4;
        shape.ffn_width = 36;
        shape.kv_heads = 4;
        shape.context.method = GetParam();
        shape.seq_length = 8;
        shape.dropout = 0.0;
        shape.recompute = recompute;
        if ((stage + pipeline) % 2 == 0 && GetParam() != model::ContextMethod::kRing) {
          shape.ffn_width = 40;
          shape.head_size = 8;
          // Sums over four groups of query heads, with all_gather.
          shape.kv_heads = GetParam() == model::ContextMethod::kAllGather ? 1 : 4;
          model::sum_canonically(shape);
        }
        engine::TrainingOptions options = tiny_training(shape);
        options.pipeline.order = stage == 3 ? schedule::Order::kZbH1 : schedule::Order::k1F1B;
        const int tensor = stage == 1 ? 2 : 1;
        expect_steps_as_planned(
            options,
            {.world_size = pipeline * 4 * tensor,
             .axes = {{"pipeline", pipeline}, {"shard", 2}, {"context", 2}, {"tensor", tensor}},
             .num_micro_steps = 3,
             .stage = stage});
      }
    }
  }
}

// With two ranks, the next one is also the one before.
TEST(RingTraffic, OfThreeRanksGoesToTheNextAndComesFromTheOneBefore) {
  for (const auto recompute : {model::Recompute::kNone, model::Recompute::kFull}) {
    model::ModelShape shape = tiny_model(true);
    shape.context.method = model::ContextMethod::kRing;
    shape.seq_length = 6;
    shape.dropout = 0.0;
    shape.recompute = recompute;
    expect_steps_as_planned(tiny_training(shape), {.world_size = 6,
                                                   .axes = {{"shard", 2}, {"context", 3}},
                                                   .num_micro_steps = 2,
                                                   .stage = 2});
  }
}

TEST_P(ContextTraffic, HasTheExchangesOfAdapters) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int pipeline : {1, 2}) {
      model::ModelShape shape = tiny_model(stage % 2 == 0);
      shape.num_layers = 4;
      shape.kv_heads = 4;
      shape.context.method = GetParam();
      shape.seq_length = 8;
      shape.dropout = 0.0;
      shape.recompute = pipeline == 1 ? model::Recompute::kFull : model::Recompute::kNone;
      adapt(shape, stage % 2);
      expect_steps_as_planned(tiny_training(shape),
                              {.world_size = pipeline * 4,
                               .axes = {{"pipeline", pipeline}, {"shard", 2}, {"context", 2}},
                               .num_micro_steps = 3,
                               .stage = stage});
    }
  }
}

}  // namespace
}  // namespace sherd::testing
