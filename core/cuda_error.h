/// CUDA's error codes as our errors. For files that are compiled with CUDA only.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace sherd {

/// Throws TrainingError "<call> failed: ..." unless `status` is cudaSuccess.
void check_cuda(cudaError_t status, std::string_view call);

}  // namespace sherd
