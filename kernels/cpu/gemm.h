/// The one door to OpenBLAS: a product of two f32 matrices on the calling thread.
///
///   c[i,j] = scale * sum_k a[i,k] b[k,j]  (+ c[i,j])        0 <= i < rows, 0 <= j < columns, 0 <=
///   k < depth
///
/// OpenBLAS is told once to use one thread: with more it cuts the sum by their number, and the bits
/// would follow. Callers cut an output into tiles by shape and run tiles on their own threads.
#pragma once

#include <cstdint>

namespace sherd::kernels::cpu {

/// A row-major matrix; `transposed` if what lies in memory is its transpose.
struct GemmOperand {
  const float* data = nullptr;
  std::int64_t stride = 0;  ///< elements from one row in memory to the next
  bool transposed = false;
};

struct Gemm {
  std::int64_t rows = 0, columns = 0, depth = 0;
  GemmOperand a, b;
  float* c = nullptr;
  std::int64_t c_stride = 0;
  float scale = 1.0f;
  bool add = false;  ///< add to what stands in c; OpenBLAS does so in pieces of the depth
};
void gemm(const Gemm& product);

}  // namespace sherd::kernels::cpu
