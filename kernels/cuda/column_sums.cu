// T tokens (rows), O outputs (columns).
#include "kernels/cuda/column_sums.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/device_common/matmul_key.h"

namespace sherd::kernels::cuda {
namespace {

constexpr int kColumnThreads = 128;

// One block of rows, in order, for N columns of one thread: partial [blocks, O].
template <int N, class T>
__global__ void __launch_bounds__(kColumnThreads)
    sum_row_blocks(const T* x, std::int64_t rows, std::int64_t columns, float* partial) {
  const std::int64_t column =
      (static_cast<std::int64_t>(blockIdx.y) * kColumnThreads + threadIdx.x) * N;
  if (column >= columns) return;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * device_common::kBiasRows;
  const std::int64_t end =
      begin + device_common::kBiasRows < rows ? begin + device_common::kBiasRows : rows;
  float sum[N] = {};
#pragma unroll 8
  for (std::int64_t row = begin; row < end; ++row) {
    float value[N];
    device_common::load_wide<N>(x + row * columns + column, value);
    for (int i = 0; i < N; ++i) sum[i] += value[i];
  }
  for (int i = 0; i < N; ++i) partial[blockIdx.x * columns + column + i] = sum[i];
}

constexpr int kAddThreads = 32;  // small blocks: there are few columns

template <class G>
__global__ void __launch_bounds__(kAddThreads)
    add_row_blocks(const float* partial, std::int64_t blocks, std::int64_t columns, bool add,
                   G* out) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kAddThreads + threadIdx.x;
  if (column >= columns) return;
  float sum = 0.0f;
#pragma unroll 32
  for (std::int64_t block = 0; block < blocks; ++block) sum += partial[block * columns + column];
  out[column] = device_common::narrow<G>(add ? device_common::widen(out[column]) + sum : sum);
}

}  // namespace

void sum_columns(Stream& stream, const ConstTensor& dy, const LinearShape& shape, const Tensor& out,
                 bool add, const Tensor& workspace) {
  const std::int64_t rows = shape.tokens, columns = shape.outputs;
  SHERD_CHECK(workspace.bytes() >= device_common::bias_sums_bytes(shape),
              "linear: a workspace of {} bytes, {} needed", workspace.bytes(),
              device_common::bias_sums_bytes(shape));
  auto* partial = static_cast<float*>(workspace.data);
  const std::int64_t blocks = device_common::ceil_div(rows, device_common::kBiasRows);
  dispatch_float(dy.dtype, [&]<class T>(T) {
    constexpr int N = device_common::pack_of<T>();
    const T* x = dy.as<T>();
    const auto launch = [&](auto kernel, int pack) {
      const dim3 grid(grid_of(blocks), grid_of(device_common::ceil_div(
                                           columns, std::int64_t{pack} * kColumnThreads)));
      kernel<<<grid, kColumnThreads, 0, handle_of(stream)>>>(x, rows, columns, partial);
    };
    const bool packs = columns % N == 0 && device_common::allow_packs(x);
    packs ? launch(sum_row_blocks<N, T>, N) : launch(sum_row_blocks<1, T>, 1);
  });
  check_launch("linear_backward_weight (bias, blocks)");
  dispatch_float(out.dtype, [&]<class G>(G) {
    add_row_blocks<<<grid_of(device_common::ceil_div(columns, kAddThreads)), kAddThreads, 0,
                     handle_of(stream)>>>(partial, blocks, columns, add, out.as<G>());
  });
  check_launch("linear_backward_weight (bias)");
}

}  // namespace sherd::kernels::cuda
