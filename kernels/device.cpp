#include "kernels/device.h"

#include "core/cuda_device.h"
#include "core/thread_team.h"

namespace sherd::kernels {

ComputeDevice compute_device(Stream& stream) {
  if (stream.device() == DeviceKind::kCuda) {
    return {DeviceKind::kCuda, 1, cuda_stream(stream).cuda().deterministic};
  }
  return {DeviceKind::kCpu, stream.team().num_threads(), true};
}

void no_cuda_kernel(std::string_view kernel) {
  throw UsageError(
      "kernel {} was asked for on a CUDA device, but this program was built without CUDA; set "
      "run.device: cpu",
      kernel);
}

}  // namespace sherd::kernels
