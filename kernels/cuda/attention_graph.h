/// cuDNN's graphs for attention: one for each shape, type, direction and scratch size. Which plan
/// computes it is the first of cuDNN's heuristics that fits into the scratch, never the result of
/// timing.
///
/// A graph can be checked without a GPU, for a Hopper that is described by its properties:
/// tests/cuda_plans/attention_graph_test.cpp asks so whether there is a plan, and what it wants.
#pragma once

#include <cudnn.h>

#include <memory>
#include <string>

#include "kernels/cuda/attention_key.h"

namespace cudnn_frontend {
class DeviceProperties;
}

namespace sherd::kernels::cuda {

/// A graph with its plan. Tests have another who computes it (tests/fake_cuda/cudnn.cpp).
class AttentionGraph {
 public:
  virtual ~AttentionGraph() = default;
  /// Enqueues it on the handle's stream. `scratch` has the key's scratch_bytes.
  /// Errors   TrainingError, in cuDNN's words
  virtual void execute(cudnnHandle_t handle, AttentionPointers& pointers, void* scratch) const = 0;
};

/// UsageError in one line, with the key and cuDNN's version, if it has no plan or none that fits.
std::unique_ptr<AttentionGraph> build_attention_graph(const AttentionGraphKey& key,
                                                      cudnnHandle_t handle);
/// The same, up to the point where kernels are loaded.
void check_attention_graph(const AttentionGraphKey& key,
                           std::shared_ptr<const cudnn_frontend::DeviceProperties> hopper);
[[noreturn]] void refuse_attention(const AttentionGraphKey& key, std::string reason);

}  // namespace sherd::kernels::cuda
