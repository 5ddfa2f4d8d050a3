#include "kernels/device.h"

#include "core/error.h"

namespace sherd::kernels {

void no_cuda_kernel(std::string_view kernel) {
  throw UsageError(
      "kernel {} was asked for on a CUDA device, but this program was built without CUDA; set "
      "run.device: cpu",
      kernel);
}

}  // namespace sherd::kernels
