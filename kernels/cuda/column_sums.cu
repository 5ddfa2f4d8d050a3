#include "kernels/cuda/column_sums.h"

#include "kernels/cuda/launch.cuh"

namespace sherd::kernels::cuda {
namespace {

constexpr int kRowBlock = 64;   // stated in the header
constexpr int kColumns = 32;    // of one thread block: one warp's row of accesses
constexpr int kRowGroups = 16;  // row blocks that are summed side by side

// Sixteen warps each sum a block of rows; the first warp adds the sixteen in their order.
template <class T, class G>
__global__ void __launch_bounds__(kColumns* kRowGroups)
    sum_columns_kernel(const T* x, std::int64_t rows, std::int64_t columns, bool add, G* out) {
  __shared__ float partial[kRowGroups][kColumns];
  const int lane = static_cast<int>(threadIdx.x), group = static_cast<int>(threadIdx.y);
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumns + lane;
  const bool inside = column < columns;
  float total = 0.0f;
  for (std::int64_t first = 0; first < rows; first += kRowGroups * kRowBlock) {
    const std::int64_t begin = first + group * kRowBlock;
    const std::int64_t end = begin + kRowBlock < rows ? begin + kRowBlock : rows;
    float sum = 0.0f;
    if (inside) {
#pragma unroll 8
      for (std::int64_t row = begin; row < end; ++row)
        sum += body::widen(x[row * columns + column]);
    }
    partial[group][lane] = sum;
    __syncthreads();
    if (group == 0) {
      const std::int64_t blocks = body::ceil_div(rows - first, kRowBlock);
      for (int i = 0; i < kRowGroups && i < blocks; ++i) total += partial[i][lane];
    }
    __syncthreads();
  }
  if (group == 0 && inside) {
    out[column] = body::narrow<G>(add ? body::widen(out[column]) + total : total);
  }
}

}  // namespace

void sum_columns(Stream& stream, const ConstTensor& x, std::int64_t rows, std::int64_t columns,
                 const Tensor& out, bool add) {
  const auto grid = static_cast<unsigned>(body::ceil_div(columns, kColumns));
  dispatch_float(x.dtype, [&]<class T>(T) {
    dispatch_float(out.dtype, [&]<class G>(G) {
      sum_columns_kernel<<<grid, dim3(kColumns, kRowGroups), 0, handle_of(stream)>>>(
          x.as<T>(), rows, columns, add, out.as<G>());
    });
  });
  check_launch("linear_backward_weight (bias)");
}

}  // namespace sherd::kernels::cuda
