/// What a thread needs of cuDNN: a handle, and the graphs that were planned with it.
#pragma once

#include <map>
#include <memory>

#include "core/cuda_device.h"
#include "kernels/cuda/attention_graph.h"
#include "kernels/cuda/grouped_graph.h"

namespace sherd::kernels::cuda {

struct DestroyCudnn {
  void operator()(cudnnHandle_t handle) const { cudnnDestroy(handle); }
};

struct CudnnLibrary {
  std::unique_ptr<std::remove_pointer_t<cudnnHandle_t>, DestroyCudnn> handle{};
  // Destroyed before the handle.
  std::map<AttentionGraphKey, std::unique_ptr<AttentionGraph>> attention{};
  std::map<GroupedKey, std::unique_ptr<GroupedGraph>> grouped{};
};

/// The calling thread's until it ends; the next run's ranks find the graphs
/// (kernels/device_common/lease_pool.h). The handle's next call is on `stream`.
CudnnLibrary& cudnn_library(const CudaStream& stream);

}  // namespace sherd::kernels::cuda
