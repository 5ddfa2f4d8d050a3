/// Small models that tensor and context ranks share on GPUs, and what they are compared with: the same mesh on CPUs,
/// and the same tensor and context ranks whose state isn't sharded.
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
  /// Heads of a width that cuDNN doesn't take: in 16 bits, too, dropout has the CPU's masks.
  bool own_heads = false;

  int world_size() const { return tensor * context * shards * pipeline * replicas; }
};
std::string name_of(const GpuMesh& each);

/// Both axes and their combination, all stages and types, both forms; several rows and a vocabulary that ranks can't
/// share evenly; more tensor ranks than key/value heads; replicas, Muon, and dropout in 16 bits.
std::vector<GpuMesh> gpu_meshes();

engine::TrainingOptions options_of(const GpuMesh& each);
RunShape setup_of(const GpuMesh& each, RunShape::Place place);
Outcome train_on(const GpuMesh& each, RunShape::Place place);
/// On the same tensor and context ranks alone: shards and replicas are micro-steps.
Outcome train_unsharded(GpuMesh each, RunShape::Place place);
/// Losses stay as near to the CPU's as docs/precision.md has it.
void expect_near_the_cpus(const GpuMesh& each, const Outcome& gpu);

}  // namespace sherd::testing
