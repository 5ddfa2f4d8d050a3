/// cuDNN's graphs for attention: one for each shape, type, direction and scratch size. The plan is
/// the first of cuDNN's heuristics that fits into the scratch; it never depends on timing.
///
/// A graph can be checked without a GPU, for a Hopper described by its properties.
/// tests/cuda_plans/attention_graph_test.cpp checks this way whether there is a plan, and its
/// needs.
#pragma once

#include <cudnn.h>

#include <memory>
#include <string>

#include "kernels/cuda/attention_key.h"

namespace cudnn_frontend {
class DeviceProperties;
}

namespace sherd::kernels::cuda {

/// A graph with its plan. Tests replace the implementation (tests/fake_cuda/cudnn.cpp).
class AttentionGraph {
 public:
  virtual ~AttentionGraph() = default;
  /// Enqueues it on the handle's stream. `scratch` has the key's scratch_bytes.
  /// Errors   TrainingError with cuDNN's message
  virtual void execute(cudnnHandle_t handle, AttentionPointers& pointers, void* scratch) const = 0;
};

/// UsageError in one line, with the key and the cuDNN version, if there is no plan or none fits.
std::unique_ptr<AttentionGraph> build_attention_graph(const AttentionGraphKey& key,
                                                      cudnnHandle_t handle);
/// The same, without loading kernels.
void check_attention_graph(const AttentionGraphKey& key,
                           std::shared_ptr<const cudnn_frontend::DeviceProperties> hopper);
[[noreturn]] void refuse_attention(const AttentionGraphKey& key, std::string reason);

}  // namespace sherd::kernels::cuda
