#include "tests/support/devices/gpu_pipelines.h"

#include <gtest/gtest.h>

namespace sherd::testing {
namespace {

using schedule::Order;

// What cuDNN's attention and cuBLASLt's GELU take. Attention's dropout inside cuDNN promises the same bits from run
// to run, not between layouts.
engine::TrainingOptions options_of(const GpuPipeline& each) {
  model::ModelShape shape = tiny_model(each.tied);
  shape.num_layers = 7;
  shape.dtype = each.dtype;
  shape.dropout = 0.0;
  shape.recompute = each.recompute;
  if (each.dtype != DType::kF32) {
    shape.query_heads = 3;
    shape.kv_heads = 1;
    shape.ffn_width = 40;
  }
  engine::TrainingOptions options = tiny_training(shape, 0.05f);  // clips
  options.precision = {each.dtype, DType::kF32, DType::kF32};
  options.pipeline.order = each.order;
  options.pipeline.chunks_per_rank = schedule::default_chunks_per_rank(each.order);
  return options;
}

Outcome on_one_rank(const GpuPipeline& each) {
  return train(
      options_of(each),
      {.num_micro_steps = each.micro_batches * each.shards, .place = RunShape::Place::kGpu},
      each.steps);
}

}  // namespace

std::string name_of(const GpuPipeline& each) {
  return fmt::format("{} on {} ranks, {} micro-batches, stage {}, {} shards, {}",
                     schedule::name_of(each.order), each.ranks, each.micro_batches, each.stage,
                     each.shards, sherd::name_of(each.dtype));
}

std::vector<GpuPipeline> gpu_pipelines() {
  constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;
  return {
      {.order = Order::kLayerParallel, .ranks = 3, .micro_batches = 2, .stage = 3, .dtype = kF32},
      {.order = Order::kGPipe, .ranks = 2, .micro_batches = 3, .stage = 1, .dtype = kBF16},
      {.order = Order::k1F1B, .ranks = 3, .micro_batches = 4, .stage = 2, .dtype = kF32},
      {.order = Order::kInterleaved1F1B,
       .ranks = 2,
       .micro_batches = 4,
       .stage = 3,
       .dtype = kBF16},
      {.order = Order::kZbH1, .ranks = 3, .micro_batches = 3, .stage = 0, .dtype = kBF16},
      {.order = Order::kZbV, .ranks = 2, .micro_batches = 5, .stage = 2, .dtype = kF32},
      {.order = Order::kZbV, .ranks = 3, .micro_batches = 2, .stage = 1, .dtype = kF32},
      {.order = Order::kDualPipeV, .ranks = 2, .micro_batches = 5, .stage = 0, .dtype = kBF16},
  };
}

Outcome train_on_gpus(const GpuPipeline& each, RunShape::Place place) {
  return train(options_of(each),
               {.world_size = each.ranks * each.shards,
                .axes = {{"pipeline", each.ranks}, {"shard", each.shards}},
                .num_micro_steps = each.micro_batches,
                .stage = each.stage,
                .prefetch_depth = each.stage % 3,
                .place = place,
                .cuda_graphs = each.graphs},
               each.steps);
}

void expect_bits_of_one_rank(const GpuPipeline& each, RunShape::Place place) {
  EXPECT_EQ(difference(train_on_gpus(each, place), on_one_rank(each)), "") << name_of(each);
}

}  // namespace sherd::testing
