/// Small models on GPU meshes with tensor and context ranks, and the runs that they are compared
/// with: the same mesh on CPUs, and the same tensor and context ranks without sharding.
#pragma once

#include <string>
#include <vector>

#include "tests/support/runs/training_harness.h"

namespace sherd::testing {

struct GpuMesh {
  int tensor = 1, context = 1, shards = 1, replicas = 1, pipeline = 1;
  int stage = 0, micro_steps = 1;
  DType dtype = DType::kF32;
  bool tied = false;  ///< GPT-2's form, with biases and learned positions; else Llama's
  bool sequence_parallel = false;
  model::ContextMethod method = model::ContextMethod::kUlysses;
  model::Recompute recompute = model::Recompute::kNone;
  optim::OptimizerType optimizer = optim::OptimizerType::kAdamW;
  int steps = 2;
  /// Heads of a width that cuDNN doesn't support, so that 16-bit dropout also has the CPU's masks.
  bool own_heads = false;

  int world_size() const { return tensor * context * shards * pipeline * replicas; }
};
std::string name_of(const GpuMesh& each);

/// Both axes and their combination, all stages and types, both forms; several rows and a vocabulary
/// that don't divide evenly among ranks; more tensor ranks than key/value heads; replicas, Muon,
/// and 16-bit dropout.
std::vector<GpuMesh> gpu_meshes();

engine::TrainingOptions options_of(const GpuMesh& each);
RunShape setup_of(const GpuMesh& each, RunShape::Place place);
Outcome train_on(const GpuMesh& each, RunShape::Place place);
/// Trains only on the same tensor and context ranks; micro-steps replace shards and replicas.
Outcome train_unsharded(GpuMesh each, RunShape::Place place);
/// Expects losses as close to the CPU's as docs/precision.md states.
void expect_near_the_cpus(const GpuMesh& each, const Outcome& gpu);

}  // namespace sherd::testing
