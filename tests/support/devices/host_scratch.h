/// Scratch of the calling thread for a matmul that the CPU computes in place of a GPU's library.
#pragma once

#include <vector>

#include "core/tensor.h"
#include "kernels/cpu/linear.h"

namespace sherd::test {

/// The CPU's scratch for 16-bit products is larger than cuBLASLt's at some shapes.
inline Tensor host_scratch(const kernels::LinearShape& shape, DType dtype) {
  thread_local std::vector<float> scratch;
  const std::int64_t bytes = kernels::cpu::linear_workspace_bytes(shape, dtype, DType::kBF16);
  scratch.resize(static_cast<std::size_t>(bytes / 4 + 1));
  return {scratch.data(), DType::kF32, static_cast<std::int64_t>(scratch.size())};
}

}  // namespace sherd::test
