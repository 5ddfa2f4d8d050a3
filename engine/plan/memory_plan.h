/// The memory that a recipe needs, known before anything is allocated: every room lists its
/// buffers, and the plan combines them for one rank.
#pragma once

#include "core/memory_plan.h"
#include "engine/train/layout/sharding_plan.h"

namespace sherd::engine {

/// Inputs of a rank's memory plan in addition to the recipe.
struct MemoryRequest {
  sharding::Mesh mesh{};
  int rank = 0;
  int num_threads = 1;  ///< compute threads of a rank: kernels have scratch for each
  bool saves = false;   ///< checkpoints are written: their ring is part of the plan
  DeviceKind device = DeviceKind::kCpu;
  bool deterministic = true;  ///< on a GPU: run.deterministic
  /// The device has its own memory, as a GPU has. Buffers that only host code needs aren't in it,
  /// and buffers that both need have a twin on the host.
  bool separate_memory = false;
  std::int64_t staging_bytes = 0;  ///< of reductions, if ranks are in several processes
};

/// Everything that `ShardedModel` and `TrainingStep` acquire.
std::vector<BufferSpec> training_buffers(const TrainingOptions& options,
                                         const MemoryRequest& request);

/// Everything that a run acquires: training, evaluation, data and checkpoints.
std::vector<BufferSpec> run_buffers(const TrainingOptions& options, const MemoryRequest& request);

/// Splits `buffers` between device and host memory, and what is offloaded between uses. With separate
/// memory, the host has the staging of checkpoints, the twins of mirrored buffers, and what is
/// offloaded; otherwise nothing.
MemoryPlan device_plan(std::vector<BufferSpec> buffers, const MemoryRequest& request);
MemoryPlan host_plan(const std::vector<BufferSpec>& buffers, const MemoryRequest& request);
MemoryPlan offload_plan(std::vector<BufferSpec> buffers);

/// Everything that a run acquires on its device: training, evaluation, data and checkpoints.
MemoryPlan plan_memory(const TrainingOptions& options, const MemoryRequest& request);

/// Everything that a model acquires for inference (engine/inference/evaluate.h).
MemoryPlan plan_inference_memory(const TrainingOptions& options, const MemoryRequest& request);

/// Additional host memory for each of the two above.
MemoryPlan plan_host_memory(const TrainingOptions& options, const MemoryRequest& request);
/// What is offloaded between uses; without separate memory, its places are those in the rank's file.
MemoryPlan plan_offload(const TrainingOptions& options, const MemoryRequest& request);
MemoryPlan plan_inference_host_memory(const TrainingOptions& options, const MemoryRequest& request);

}  // namespace sherd::engine
