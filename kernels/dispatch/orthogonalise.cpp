#include "kernels/orthogonalise.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "kernels/device.h"
#include "kernels/launches/on_gpu.h"
#include "kernels/linear.h"

namespace sherd::kernels {
namespace {

template <class T>
using MatrixMap = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

constexpr NewtonSchulz::Step kJordanStep = {3.4445f, -4.7750f, 2.0315f};
constexpr NewtonSchulz kJordan = {
    {kJordanStep, kJordanStep, kJordanStep, kJordanStep, kJordanStep}, 1.0, 1e-7};
constexpr NewtonSchulz kPolarExpress = {
    {{8.156554524902461f, -22.48329292557795f, 15.878769915207462f},
     {4.042929935166739f, -2.808917465908714f, 0.5000178451051316f},
     {3.8916678022926607f, -2.772484153217685f, 0.5060648178503393f},
     {3.285753657755655f, -2.3681294933425376f, 0.46449024233003106f},
     {2.3465413258596377f, -1.7097828382687081f, 0.42323551169305323f}},
    1.02,
    1e-6};
constexpr std::int64_t kPartBytes = 256;

// `function` gets a value of the type that Eigen computes with.
template <class Function>
void dispatch(DType dtype, const Function& function) {
  if (dtype == DType::kBF16) return function(Eigen::bfloat16{});
  function(float{});
}

template <class T>
MatrixMap<T> map_of(const Tensor& tensor, std::int64_t rows, std::int64_t columns) {
  return {static_cast<T*>(tensor.data), rows, columns};
}

// y = a y + b x, rounded once.
void blend(Stream& stream, const Tensor& x, const Tensor& y, float a, float b) {
  stream.run("orthogonalise", [=] {
    dispatch(y.dtype, [&]<class T>(T) {
      auto out = map_of<T>(y, 1, y.numel);
      out = (a * out.template cast<float>() + b * map_of<T>(x, 1, x.numel).template cast<float>())
                .template cast<T>();
    });
  });
}

// to = scale * from, transposed if their shapes say so.
template <class From, class To>
void copy_scaled(const MatrixMap<From>& from, float scale, bool transpose, MatrixMap<To> to) {
  if (transpose) {
    to = (scale * from.transpose().template cast<float>()).template cast<To>();
  } else {
    to = (scale * from.template cast<float>()).template cast<To>();
  }
}

std::int64_t part_bytes(std::int64_t numel, DType dtype) {
  const std::int64_t bytes = numel * static_cast<std::int64_t>(size_of(dtype));
  return (bytes + kPartBytes - 1) / kPartBytes * kPartBytes;
}

std::int64_t matmul_bytes(std::int64_t small, std::int64_t large, DType dtype) {
  const auto bytes = [&](const LinearShape& shape) {
    return linear_workspace_bytes(shape, dtype, dtype, {});
  };
  return std::max(bytes({small, large, small}), bytes({small, small, small}));
}

void compute(Stream& stream, const Orthogonalise& args) {
  const auto [x, y, gram, gram2, workspace] = newton_schulz_parts(args);
  const auto [matrix, rows, columns, dtype, whole_workspace, polynomials] = args;
  const NewtonSchulz& numbers = newton_schulz(polynomials);
  const std::int64_t small = std::min(rows, columns), large = std::max(rows, columns);
  stream.run(
      "orthogonalise", [=, &numbers, matrix = matrix, rows = rows, columns = columns, x = x] {
        const float* values = matrix.as<float>();
        double sum = 0.0;
        for (std::int64_t i = 0; i < matrix.numel; ++i) {
          sum += static_cast<double>(values[i]) * values[i];
        }
        const auto inverse =
            static_cast<float>(1.0 / (numbers.norm_factor * std::sqrt(sum) + numbers.norm_shift));
        dispatch(x.dtype, [&]<class T>(T) {
          copy_scaled(map_of<float>(matrix, rows, columns), inverse, rows > columns,
                      map_of<T>(x, small, large));
        });
      });
  for (const auto& [a, b, c] : numbers.steps) {
    linear_forward(stream, {{small, large, small}, x, x, {}, gram, workspace});
    linear_forward(stream, {{small, small, small}, gram, gram, {}, gram2, workspace});
    blend(stream, gram2, gram, b, c);
    // y [small, large] = polynomial [small, small] times x [small, large].
    linear_backward_input(stream, {{small, large, small}, gram, x, y, false, workspace});
    blend(stream, y, x, a, 1.0f);
  }
  stream.run("orthogonalise", [=, matrix = matrix, rows = rows, columns = columns, x = x] {
    dispatch(x.dtype, [&]<class T>(T) {
      copy_scaled(map_of<T>(x, small, large), 1.0f, rows > columns,
                  map_of<float>(matrix, rows, columns));
    });
  });
}

}  // namespace

const NewtonSchulz& newton_schulz(Polynomials polynomials) {
  return polynomials == Polynomials::kPolarExpress ? kPolarExpress : kJordan;
}

std::int64_t orthogonalise_workspace_numel(std::int64_t rows, std::int64_t columns, DType dtype) {
  const std::int64_t small = std::min(rows, columns), large = std::max(rows, columns);
  const std::int64_t bytes = 2 * part_bytes(small * large, dtype) +
                             2 * part_bytes(small * small, dtype) +
                             matmul_bytes(small, large, dtype);
  return (bytes + 3) / 4;
}

NewtonSchulzParts newton_schulz_parts(const Orthogonalise& args) {
  const std::int64_t small = std::min(args.rows, args.columns), numel = args.rows * args.columns;
  auto* const begin = static_cast<std::byte*>(args.workspace.data);
  auto* next = begin;
  const auto take = [&](std::int64_t count) {
    const Tensor part{next, args.dtype, count};
    next += part_bytes(count, args.dtype);
    return part;
  };
  NewtonSchulzParts parts;
  parts.x = take(numel);
  parts.y = take(numel);
  parts.gram = take(small * small);
  parts.gram2 = take(small * small);
  const std::int64_t used = (next - begin) / 4;
  parts.of_matmuls = args.workspace.part(used, args.workspace.numel - used);
  return parts;
}

void orthogonalise(Stream& stream, const Orthogonalise& args) {
  SHERD_CHECK(args.matrix.dtype == DType::kF32 && args.matrix.numel == args.rows * args.columns,
              "a matrix of {} elements", args.matrix.numel);
  SHERD_CHECK(args.dtype == DType::kF32 || args.dtype == DType::kBF16, "orthogonalise: in {}",
              name_of(args.dtype));
  SHERD_CHECK(args.workspace.dtype == DType::kF32 &&
                  args.workspace.numel >=
                      orthogonalise_workspace_numel(args.rows, args.columns, args.dtype),
              "a workspace of {} elements", args.workspace.numel);
  if (is_cuda(stream)) return on_gpu(stream, cuda::orthogonalise, launches::orthogonalise, args);
  compute(stream, args);
}

}  // namespace sherd::kernels
