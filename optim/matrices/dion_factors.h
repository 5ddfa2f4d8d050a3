/// What dion.cpp and dion_sum.cpp compute in the same way. M [rows, columns], p [rank, rows],
/// q [rank, columns], all f32.
#pragma once

#include "core/stream.h"
#include "kernels/low_rank.h"
#include "optim/matrices/matrix_parts.h"
#include "optim/optimizer.h"

namespace sherd::optim {

/// Columns of a matrix's basis.
std::int64_t dion_rank(const OptimizerOptions& options, const MatrixPart& matrix);
/// Normal numbers by the run's seed. `parameter`: its index in the model's table; `number`: the
/// matrix's in the parameter.
void fill_first_basis(Stream& stream, const OptimizerOptions& options, std::uint32_t parameter,
                      int number, const Tensor& basis);
/// p = M q, and q = M^T p.
void dion_rows(Stream& stream, const kernels::LowRankShape& shape, const Tensor& q,
               const Tensor& matrix, const Tensor& p, const Tensor& workspace);
void dion_columns(Stream& stream, const kernels::LowRankShape& shape, const Tensor& p,
                  const Tensor& matrix, const Tensor& q, const Tensor& workspace);
/// f32 numbers of workspace for both.
std::int64_t dion_workspace_numel(const kernels::LowRankShape& shape);
/// The factor of P R^T that a momentum loses.
float unused_share(const OptimizerOptions& options);

}  // namespace sherd::optim
