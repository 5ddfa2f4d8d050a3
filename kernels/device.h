/// What the device-independent functions know about a stream's device.
#pragma once

#include <string_view>

#include "core/stream.h"

namespace sherd::kernels {

/// What the size of a kernel's workspace depends on, in addition to its shape.
struct ComputeDevice {
  DeviceKind kind = DeviceKind::kCpu;
  int num_threads = 1;        ///< CPU: threads of the stream's team
  bool deterministic = true;  ///< CUDA: CudaStreamOptions::deterministic
};
ComputeDevice compute_device(Stream& stream);
inline bool is_cuda(const Stream& stream) {
  return stream.device() == DeviceKind::kCuda;
}

/// Throws UsageError: `kernel` was called for a CUDA device that this program can't use.
[[noreturn]] void no_cuda_kernel(std::string_view kernel);

}  // namespace sherd::kernels
