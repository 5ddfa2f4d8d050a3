#include "kernels/orthogonalise.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "kernels/cuda/forms.h"
#include "kernels/linear.h"

namespace sherd::kernels {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixMap = Eigen::Map<Matrix>;

constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;
constexpr int kIterations = 5;

MatrixMap map_of(const Tensor& tensor, std::int64_t rows, std::int64_t columns) {
  return {tensor.as<float>(), rows, columns};
}

// One step on x [small, large]; squares and y are scratch.
void newton_schulz(Stream& stream, const Tensor& x, std::int64_t small, std::int64_t large,
                   const Tensor& gram, const Tensor& gram2, const Tensor& y) {
  linear_forward(stream, {{small, large, small}, x, x, {}, gram, {}});         // A = X X^T
  linear_forward(stream, {{small, small, small}, gram, gram, {}, gram2, {}});  // A A, A symmetric
  stream.run("orthogonalise", [=] {
    MatrixMap polynomial = map_of(gram, small, small);
    polynomial = kB * polynomial + kC * map_of(gram2, small, small);
  });
  // y [small, large] = polynomial [small, small] times X [small, large].
  linear_backward_input(stream, {{small, large, small}, gram, x, y, false, {}});
  stream.run("orthogonalise", [=] {
    MatrixMap result = map_of(x, small, large);
    result = kA * result + map_of(y, small, large);
  });
}

}  // namespace

std::int64_t orthogonalise_workspace_numel(std::int64_t rows, std::int64_t columns) {
  const std::int64_t small = std::min(rows, columns);
  return 2 * rows * columns + 2 * small * small;
}

void orthogonalise(Stream& stream, Tensor matrix, std::int64_t rows, std::int64_t columns,
                   Tensor workspace) {
  CHECK(matrix.dtype == DType::kF32 && matrix.numel == rows * columns, "a matrix of {} elements",
        matrix.numel);
  CHECK(workspace.dtype == DType::kF32 &&
            workspace.numel >= orthogonalise_workspace_numel(rows, columns),
        "a workspace of {} elements", workspace.numel);
  if (stream.device() == DeviceKind::kCuda) {
    return cuda::orthogonalise(stream, matrix, rows, columns, workspace);
  }
  const std::int64_t small = std::min(rows, columns), large = std::max(rows, columns);
  const std::int64_t numel = rows * columns;
  const Tensor x = workspace.part(0, numel);
  const Tensor y = workspace.part(numel, numel);
  const Tensor gram = workspace.part(2 * numel, small * small);
  const Tensor gram2 = workspace.part(2 * numel + small * small, small * small);
  stream.run("orthogonalise", [=] {
    const float* values = matrix.as<float>();
    double sum = 0.0;
    for (std::int64_t i = 0; i < numel; ++i) sum += static_cast<double>(values[i]) * values[i];
    const auto inverse = static_cast<float>(1.0 / (std::sqrt(sum) + 1e-7));
    const MatrixMap source = map_of(matrix, rows, columns);
    if (rows > columns) {
      map_of(x, small, large) = inverse * source.transpose();
    } else {
      map_of(x, small, large) = inverse * source;
    }
  });
  for (int i = 0; i < kIterations; ++i) newton_schulz(stream, x, small, large, gram, gram2, y);
  stream.run("orthogonalise", [=] {
    if (rows > columns) {
      map_of(matrix, rows, columns) = map_of(x, small, large).transpose();
    } else {
      map_of(matrix, rows, columns) = map_of(x, small, large);
    }
  });
}

}  // namespace sherd::kernels
