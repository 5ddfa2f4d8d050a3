/// Which of NVIDIA's libraries the loader has found for kernels/cuda.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/cuda_device.h"

namespace sherd::kernels {

/// cuBLASLt and cuDNN; empty in a program built without CUDA.
std::vector<LoadedLibrary> loaded_libraries();

/// What matmuls on this GPU have of a table of measured algorithms, in a line; "" without a table
/// (kernels/device_common/matmul_table.h). Reads the table.
std::string measured_matmuls(int device);
/// Of the bytes of that table's file, which processes of a run must have in common; 0 without a file.
std::uint64_t matmul_table_fingerprint();

}  // namespace sherd::kernels
