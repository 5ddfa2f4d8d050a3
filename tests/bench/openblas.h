/// OpenBLAS, the yardstick of the benchmarks: a product of two f32 matrices on the calling thread.
///
///   c[i,j] = scale * sum_k a[i,k] b[k,j]  (+ c[i,j])
///
///   0 <= i < rows, 0 <= j < columns, 0 <= k < depth
///
/// It is set once to use one thread. The engine doesn't use it: the bits of its rows follow how
/// many rows there are.
#pragma once

#include <cstdint>

namespace sherd::bench {

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
  bool add = false;  ///< add to the values in c; OpenBLAS does so in pieces of the depth
};
void gemm(const Gemm& matmul);

}  // namespace sherd::bench
