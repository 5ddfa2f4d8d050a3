#include "kernels/orthogonalise.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "kernels/device.h"
#include "kernels/launches/on_gpu.h"
#include "kernels/linear.h"

namespace sherd::kernels {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixMap = Eigen::Map<Matrix>;

constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;
constexpr std::int64_t kLine = 16;  // floats of a cache line

MatrixMap map_of(const Tensor& tensor, std::int64_t rows, std::int64_t columns) {
  return {tensor.as<float>(), rows, columns};
}

// What a step works in beside x [small, large].
struct Scratch {
  Tensor y;            // [small, large]
  Tensor gram, gram2;  // [small, small]
  Tensor of_the_matmuls;
};

std::int64_t matmul_floats(std::int64_t small, std::int64_t large) {
  const auto bytes = [](const LinearShape& shape) {
    return linear_workspace_bytes(shape, DType::kF32, DType::kF32, {});
  };
  return (std::max(bytes({small, large, small}), bytes({small, small, small})) + 3) / 4;
}

// One step on x [small, large].
void newton_schulz(Stream& stream, const Tensor& x, std::int64_t small, std::int64_t large,
                   const Scratch& scratch) {
  const auto& [y, gram, gram2, workspace] = scratch;
  linear_forward(stream, {{small, large, small}, x, x, {}, gram, workspace});  // A = X X^T
  linear_forward(stream,
                 {{small, small, small}, gram, gram, {}, gram2, workspace});  // A A, A symmetric
  stream.run("orthogonalise", [=, gram = gram, gram2 = gram2] {
    MatrixMap polynomial = map_of(gram, small, small);
    polynomial = kB * polynomial + kC * map_of(gram2, small, small);
  });
  // y [small, large] = polynomial [small, small] times X [small, large].
  linear_backward_input(stream, {{small, large, small}, gram, x, y, false, workspace});
  stream.run("orthogonalise", [=, y = y] {
    MatrixMap result = map_of(x, small, large);
    result = kA * result + map_of(y, small, large);
  });
}

}  // namespace

std::int64_t orthogonalise_workspace_numel(std::int64_t rows, std::int64_t columns) {
  const std::int64_t small = std::min(rows, columns), large = std::max(rows, columns);
  return 2 * rows * columns + 2 * small * small + kLine + matmul_floats(small, large);
}

void orthogonalise(Stream& stream, Tensor matrix, std::int64_t rows, std::int64_t columns,
                   Tensor workspace) {
  CHECK(matrix.dtype == DType::kF32 && matrix.numel == rows * columns, "a matrix of {} elements",
        matrix.numel);
  CHECK(workspace.dtype == DType::kF32 &&
            workspace.numel >= orthogonalise_workspace_numel(rows, columns),
        "a workspace of {} elements", workspace.numel);
  if (is_cuda(stream)) {
    return on_gpu(stream, cuda::orthogonalise, launches::orthogonalise, matrix, rows, columns,
                  workspace);
  }
  const std::int64_t small = std::min(rows, columns), large = std::max(rows, columns);
  const std::int64_t numel = rows * columns;
  const Tensor x = workspace.part(0, numel);
  // The matmuls' own part lies first after these, at a multiple of 64 bytes.
  const std::int64_t end = (2 * numel + 2 * small * small + kLine - 1) / kLine * kLine;
  const Scratch scratch{workspace.part(numel, numel), workspace.part(2 * numel, small * small),
                        workspace.part(2 * numel + small * small, small * small),
                        workspace.part(end, matmul_floats(small, large))};
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
  for (int i = 0; i < kNewtonSchulzSteps; ++i) newton_schulz(stream, x, small, large, scratch);
  stream.run("orthogonalise", [=] {
    if (rows > columns) {
      map_of(matrix, rows, columns) = map_of(x, small, large).transpose();
    } else {
      map_of(matrix, rows, columns) = map_of(x, small, large);
    }
  });
}

}  // namespace sherd::kernels
