/// cuDNN's graphs of grouped products (grouped_products.h), one for each key. As those of attention
/// (attention_graph.h) they can be checked without a GPU (tests/cuda_plans/grouped_graph_test.cpp).
#pragma once

#include <cudnn.h>

#include <memory>

#include "kernels/cuda/grouped_products.h"

namespace cudnn_frontend {
class DeviceProperties;
}

namespace sherd::kernels::cuda {

/// A graph with its plan. Tests replace the implementation (tests/fake_cuda/cudnn.cpp).
class GroupedGraph {
 public:
  virtual ~GroupedGraph() = default;
  /// Enqueues it on the handle's stream. `scratch` has kGroupedScratchBytes.
  /// Errors   TrainingError with cuDNN's message
  virtual void execute(cudnnHandle_t handle, const GroupedOperands& operands,
                       const std::int32_t* offsets, void* scratch) const = 0;
};

/// UsageError in one line, with the key and the cuDNN version, if there is no plan or none fits.
std::unique_ptr<GroupedGraph> build_grouped_graph(const GroupedKey& key, cudnnHandle_t handle);

/// The same, without loading kernels: the plan's engine and kernel, in cuDNN's words. `transposed`:
/// for weights [inputs, outputs].
std::string check_grouped_graph(const GroupedKey& key,
                                std::shared_ptr<const cudnn_frontend::DeviceProperties> hopper,
                                bool transposed = false);
[[noreturn]] void refuse_grouped(const GroupedKey& key, std::string reason);

}  // namespace sherd::kernels::cuda
