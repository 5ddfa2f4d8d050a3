#include "optim/matrices/dion_factors.h"

#include <algorithm>
#include <cmath>

#include "kernels/linear.h"
#include "kernels/pointwise.h"

namespace sherd::optim {
namespace {

// Tells the first bases from other random numbers of the run.
constexpr std::uint32_t kBasisStep = 0x44696f6e;

kernels::LinearShape product_of(const kernels::LowRankShape& shape) {
  return {shape.rank, shape.columns, shape.rows};
}

}  // namespace

std::int64_t dion_rank(const OptimizerOptions& options, const MatrixPart& matrix) {
  const std::int64_t side = std::min(matrix.whole_rows, matrix.whole_columns);
  const double share =
      std::ceil(static_cast<double>(options.dion_rank_fraction) * static_cast<double>(side));
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(share), 1, side);
}

void fill_first_basis(Stream& stream, const OptimizerOptions& options, std::uint32_t parameter,
                      int number, const Tensor& basis) {
  kernels::fill_normal(
      stream, basis,
      {options.moment_type.seed, kBasisStep + static_cast<std::uint32_t>(number), parameter}, 0,
      0.0f, 1.0f);
}

void dion_rows(Stream& stream, const kernels::LowRankShape& shape, const Tensor& q,
               const Tensor& matrix, const Tensor& p, const Tensor& workspace) {
  kernels::linear_forward(stream, {product_of(shape), q, matrix, {}, p, workspace});
}

void dion_columns(Stream& stream, const kernels::LowRankShape& shape, const Tensor& p,
                  const Tensor& matrix, const Tensor& q, const Tensor& workspace) {
  kernels::linear_backward_input(stream, {product_of(shape), p, matrix, q, false, workspace});
}

std::int64_t dion_workspace_numel(const kernels::LowRankShape& shape) {
  return kernels::linear_workspace_bytes(product_of(shape), DType::kF32, DType::kF32, {}) /
         static_cast<std::int64_t>(sizeof(float));
}

float unused_share(const OptimizerOptions& options) {
  return static_cast<float>(1.0 - static_cast<double>(options.momentum));
}

}  // namespace sherd::optim
