/// Which of NVIDIA's libraries the loader has found for kernels/cuda.
#pragma once

#include <vector>

#include "core/cuda_device.h"

namespace sherd::kernels {

/// cuBLASLt and cuDNN; empty in a program built without CUDA.
std::vector<LoadedLibrary> loaded_libraries();

}  // namespace sherd::kernels
