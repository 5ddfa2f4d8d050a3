/// What a recipe needs in memory, known before anything is allocated: the buffers that every room
/// lists for its own part, put together for one rank.
#pragma once

#include "core/memory_plan.h"
#include "engine/train/layout/sharding_plan.h"

namespace sherd::engine {

/// What a rank's memory depends on besides the recipe.
struct MemoryRequest {
  sharding::Mesh mesh{};
  int rank = 0;
  int num_threads = 1;  ///< compute threads of a rank: kernels have scratch for each
  bool saves = false;   ///< checkpoints are written: their ring is part of the plan
  DeviceKind device = DeviceKind::kCpu;
  bool deterministic = true;  ///< on a GPU: run.deterministic
  /// The device's memory isn't the host's, as a GPU's: what host code alone needs isn't in it, and
  /// what both need has a twin on the host.
  bool separate_memory = false;
  std::int64_t staging_bytes = 0;  ///< of reductions, where ranks are in several processes
};

/// Everything that `ShardedModel` and `TrainingStep` acquire.
std::vector<BufferSpec> training_buffers(const TrainingOptions& options,
                                         const MemoryRequest& request);

/// Of `buffers`, what stands in the device's memory, and what in the host's beside it: with
/// separate memory the staging of checkpoints and the twins of mirrored buffers, otherwise nothing.
MemoryPlan device_plan(std::vector<BufferSpec> buffers, const MemoryRequest& request);
MemoryPlan host_plan(const std::vector<BufferSpec>& buffers, const MemoryRequest& request);

/// Everything that a run acquires on its device: training, evaluation, data and checkpoints.
MemoryPlan plan_memory(const TrainingOptions& options, const MemoryRequest& request);

/// Everything that a model acquires whose weights are only used (engine/inference/evaluate.h).
MemoryPlan plan_inference_memory(const TrainingOptions& options, const MemoryRequest& request);

/// Host memory that each of the two above needs in addition.
MemoryPlan plan_host_memory(const TrainingOptions& options, const MemoryRequest& request);
MemoryPlan plan_inference_host_memory(const TrainingOptions& options, const MemoryRequest& request);

}  // namespace sherd::engine
