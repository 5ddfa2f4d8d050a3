// Newton–Schulz (kernels/orthogonalise.h) with the products of kernels/linear.h. The norm is a sum
// of squares in f64, formed where the Gram matrices will stand.
#include "kernels/orthogonalise.h"

#include "kernels/cuda/forms.h"
#include "kernels/cuda/launch.cuh"

namespace sherd::kernels::cuda {
namespace {

// out [columns, rows] = scale * in [rows, columns]^T, or in the same shape; scale is 1 without sum.
template <class In, class Out>
__global__ void scaled_copy(const In* in, std::int64_t rows, std::int64_t columns, bool transpose,
                            const double* sum_of_squares, double factor, double shift, Out* out) {
  const float scale =
      sum_of_squares ? static_cast<float>(1.0 / (factor * sqrt(*sum_of_squares) + shift)) : 1.0f;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < rows * columns; i += step) {
    const std::int64_t from = transpose ? i % rows * columns + i / rows : i;
    out[i] = device_common::narrow<Out>(scale * device_common::widen(in[from]));
  }
}

/// y = a y + b x
template <class T>
struct Blend {
  const T* x;
  T* y;
  float a, b;

  template <int N>
  __device__ void apply(std::int64_t first) const {
    float left[N], right[N];
    device_common::load_wide<N>(y + first, left);
    device_common::load_wide<N>(x + first, right);
    for (int i = 0; i < N; ++i) left[i] = a * left[i] + b * right[i];
    device_common::store_narrow<N>(y + first, left);
  }
};

// `function` gets a value of the type.
template <class Function>
void dispatch(DType dtype, const Function& function) {
  if (dtype == DType::kBF16) return function(BFloat16{});
  function(float{});
}

void blend(Stream& stream, const Tensor& x, const Tensor& y, float a, float b) {
  dispatch(y.dtype, [&]<class T>(T) {
    launch_flat<device_common::pack_of<T>()>(stream, "orthogonalise", y.numel,
                                             device_common::allow_packs(x.data, y.data),
                                             Blend<T>{x.as<T>(), y.as<T>(), a, b});
  });
}

template <class In, class Out>
void copy_scaled(Stream& stream, const In* from, std::int64_t rows, std::int64_t columns,
                 bool transpose, const double* sum, const NewtonSchulz& numbers, Out* to) {
  const auto blocks = static_cast<unsigned>(device_common::flat_blocks(rows * columns, 1));
  scaled_copy<<<blocks, device_common::kThreads, 0, handle_of(stream)>>>(
      from, rows, columns, transpose, sum, numbers.norm_factor, numbers.norm_shift, to);
  check_launch("orthogonalise");
}

}  // namespace

void orthogonalise(Stream& stream, const Orthogonalise& args) {
  const auto& [matrix, rows, columns, dtype, workspace, polynomials] = args;
  const NewtonSchulz& numbers = newton_schulz(polynomials);
  const std::int64_t small = rows < columns ? rows : columns;
  const std::int64_t large = rows < columns ? columns : rows;
  const auto [x, y, gram, gram2, rest] = newton_schulz_parts(args);

  // One partial sum for 4096 elements where y will stand, and the first takes the total.
  const Tensor partials{y.data, DType::kF64, device_common::ceil_div(matrix.numel, 4096)};
  sum_of_squares(stream, matrix, {partials.data, DType::kF64, 1}, partials);
  const bool transpose = rows > columns;
  dispatch(dtype, [&, x = x, rows = rows, columns = columns]<class T>(T) {
    copy_scaled(stream, matrix.as<float>(), rows, columns, transpose, partials.as<double>(),
                numbers, x.as<T>());
  });
  for (const auto& [a, b, c] : numbers.steps) {
    kernels::linear_forward(stream, {{small, large, small}, x, x, {}, gram, y});
    kernels::linear_forward(stream, {{small, small, small}, gram, gram, {}, gram2, y});
    blend(stream, gram2, gram, b, c);
    kernels::linear_backward_input(stream, {{small, large, small}, gram, x, y, false, gram2});
    blend(stream, y, x, a, 1.0f);
  }
  dispatch(dtype, [&, x = x]<class T>(T) {
    copy_scaled(stream, x.as<T>(), small, large, transpose, nullptr, numbers, matrix.as<float>());
  });
}

}  // namespace sherd::kernels::cuda
