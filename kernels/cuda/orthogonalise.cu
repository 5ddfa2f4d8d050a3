// Newton–Schulz (kernels/orthogonalise.h) with the products of kernels/linear.h. The norm is a sum
// of squares in f64, formed where the Gram matrices will stand.
#include "kernels/orthogonalise.h"

#include "kernels/cuda/forms.h"
#include "kernels/cuda/launch.cuh"

namespace sherd::kernels::cuda {
namespace {

constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;

// out [columns, rows] = scale * in [rows, columns]^T, or in the same shape; scale is 1 without sum.
__global__ void scaled_copy(const float* in, std::int64_t rows, std::int64_t columns,
                            bool transpose, const double* sum_of_squares, float* out) {
  const float scale =
      sum_of_squares ? static_cast<float>(1.0 / (sqrt(*sum_of_squares) + 1e-7)) : 1.0f;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < rows * columns; i += step) {
    const std::int64_t from = transpose ? i % rows * columns + i / rows : i;
    out[i] = scale * in[from];
  }
}

/// y = a y + b x
struct Blend {
  const float* x;
  float* y;
  float a, b;

  template <int N>
  __device__ void apply(std::int64_t first) const {
    float left[N], right[N];
    device_common::load<N>(y + first, left);
    device_common::load<N>(x + first, right);
    for (int i = 0; i < N; ++i) left[i] = a * left[i] + b * right[i];
    device_common::store<N>(y + first, left);
  }
};

void blend(Stream& stream, const Tensor& x, const Tensor& y, float a, float b) {
  launch_flat<4>(stream, "orthogonalise", y.numel, device_common::allow_packs(x.data, y.data),
                 Blend{x.as<float>(), y.as<float>(), a, b});
}

void copy_scaled(Stream& stream, const Tensor& from, std::int64_t rows, std::int64_t columns,
                 bool transpose, const double* sum, const Tensor& to) {
  const auto blocks = static_cast<unsigned>(device_common::flat_blocks(from.numel, 1));
  scaled_copy<<<blocks, device_common::kThreads, 0, handle_of(stream)>>>(
      from.as<float>(), rows, columns, transpose, sum, to.as<float>());
  check_launch("orthogonalise");
}

}  // namespace

void orthogonalise(Stream& stream, const Tensor& matrix, std::int64_t rows, std::int64_t columns,
                   const Tensor& workspace) {
  const std::int64_t small = rows < columns ? rows : columns;
  const std::int64_t large = rows < columns ? columns : rows, numel = rows * columns;
  const Tensor x = workspace.part(0, numel), y = workspace.part(numel, numel);
  const Tensor gram = workspace.part(2 * numel, small * small);
  const Tensor gram2 = workspace.part(2 * numel + small * small, small * small);

  // Behind x, at an even float: one partial sum for 4096 elements, and the first takes the total.
  const std::int64_t even = numel + numel % 2, num_partials = device_common::ceil_div(numel, 4096);
  const Tensor partials{workspace.part(even, 2 * num_partials).data, DType::kF64, num_partials};
  sum_of_squares(stream, matrix, {partials.data, DType::kF64, 1}, partials);
  const bool transpose = rows > columns;
  copy_scaled(stream, matrix, rows, columns, transpose, partials.as<double>(), x);
  for (int i = 0; i < kNewtonSchulzSteps; ++i) {
    kernels::linear_forward(stream, {{small, large, small}, x, x, {}, gram, {}});
    kernels::linear_forward(stream, {{small, small, small}, gram, gram, {}, gram2, {}});
    blend(stream, gram2, gram, kB, kC);
    kernels::linear_backward_input(stream, {{small, large, small}, gram, x, y, false, {}});
    blend(stream, y, x, kA, 1.0f);
  }
  copy_scaled(stream, x, small, large, transpose, nullptr, matrix);
}

}  // namespace sherd::kernels::cuda
