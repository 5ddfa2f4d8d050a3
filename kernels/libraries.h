/// Which of NVIDIA's libraries the loader has found for kernels/cuda.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/cuda_device.h"

namespace sherd::kernels {

/// cuBLASLt and cuDNN; empty in a program built without CUDA.
std::vector<LoadedLibrary> loaded_libraries();

/// One line: what the table of measured algorithms has for matmuls on this GPU; "" without a table
/// (kernels/device_common/matmul_table.h). Reads the table.
std::string measured_matmuls(int device);
/// Fingerprint of that table's file, which must be the same in all processes of a run; 0 without a
/// file.
std::uint64_t matmul_table_fingerprint();

}  // namespace sherd::kernels
