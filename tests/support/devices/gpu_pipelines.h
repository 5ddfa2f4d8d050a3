/// Small pipelines on GPUs, and the run that they are compared with: the same micro-batches on one
/// rank with a GPU.
#pragma once

#include <string>
#include <vector>

#include "engine/schedule/generate.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {

struct GpuPipeline {
  schedule::Order order = schedule::Order::k1F1B;
  int ranks = 2, micro_batches = 4, stage = 0, shards = 1;
  DType dtype = DType::kF32;
  model::Recompute recompute = model::Recompute::kNone;
  int steps = 2;
  bool tied = false, graphs = false;
};
std::string name_of(const GpuPipeline& each);

/// All schedules on 2 and 3 ranks, all stages, f32 and bf16; each pair of values occurs in one
/// pipeline.
std::vector<GpuPipeline> gpu_pipelines();

Outcome train_on_gpus(const GpuPipeline& each, RunShape::Place place);
void expect_bits_of_one_rank(const GpuPipeline& each, RunShape::Place place);

}  // namespace sherd::testing
