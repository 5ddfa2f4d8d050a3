/// The plan of optimizers that update whole matrices (optim/matrices/matrix_optimizer.h), computed before
/// anything runs and equal on every rank: the matrices, which rank owns each, the buffers, and the
/// traffic.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "optim/matrices/matrix_parts.h"
#include "optim/optimizer.h"

namespace sherd::optim {

/// Whether the parameter is updated as matrices; otherwise AdamW updates it. Groups may leave more
/// matrices to AdamW.
bool is_by_matrix(const OptimizerOptions& options, const UnitSpec& unit,
                  const ParameterSpec& parameter);

/// One logical matrix of a unit's flat buffer, or this rank's part of it.
struct OwnedMatrix {
  std::int64_t offset = 0;  ///< in the flat buffer
  MatrixPart part;
  int parameter = 0, number = 0;  ///< index in the unit, and of the matrix in the whole parameter
  int owner = 0;                  ///< index among the owners of slices
  int tensor_owner = 0;

  std::int64_t numel() const { return part.numel(); }
  double cost() const {
    return static_cast<double>(part.whole_numel()) *
           static_cast<double>(std::min(part.whole_rows, part.whole_columns));
  }
};

std::vector<OwnedMatrix> matrices_of(const OptimizerOptions& options,
                                     const sharding::UnitPlan& unit);

/// Within a unit, since units are updated one after another.
void choose_owners(std::vector<OwnedMatrix>& matrices, int num_slices, int tensor_degree);

/// Rounded up to a multiple of 64 elements.
std::int64_t padded(std::int64_t numel);

/// Elements of AdamW's second moment that each slice's rank holds.
std::vector<std::int64_t> second_moment_numels(const OptimizerOptions& options,
                                               const sharding::UnitPlan& unit);

struct MatrixBuffers {
  /// By unit: of all parameters, or AdamW's first moment alone; and its second moment.
  std::vector<std::optional<BufferSpec>> momentum, exp_avg, exp_avg_sq;
  std::optional<BufferSpec> full;    // of one unit at a time
  std::vector<MatrixPart> matrices;  // of all units

  /// All of them, and those that form whole matrices of `tensor_degree` parts.
  std::vector<BufferSpec> list(int tensor_degree) const;
};
/// `optimizer`: its name in the names of buffers.
MatrixBuffers matrix_buffers(const OptimizerOptions& options, const sharding::ShardingPlan& plan,
                             int rank, const std::string& optimizer);
/// Only AdamW's moments, if matrices have none.
MatrixBuffers rest_buffers(const OptimizerOptions& options, const sharding::ShardingPlan& plan,
                           int rank);

/// Room for the work on one matrix of any size of them, `numel_of` each.
template <class Numel>
std::optional<BufferSpec> matrix_workspace(const std::vector<MatrixPart>& matrices,
                                           const std::string& name, const Numel& numel_of) {
  std::int64_t numel = 0;
  for (const MatrixPart& matrix : matrices) numel = std::max(numel, numel_of(matrix));
  if (numel == 0) return std::nullopt;
  return BufferSpec{name, Category::kWorkspace, DType::kF32, numel, kUpdate};
}

/// What a rank sends in an update: slices are gathered, and each owner's results are broadcast to
/// its tensor ranks, then to the other slices.
struct MatrixTraffic {
  using Numel = std::int64_t(const OptimizerOptions& options, const OwnedMatrix& matrix);
  std::string gathered, broadcast;  ///< labels
  Numel *numel_to_slices = nullptr, *numel_to_tensor_ranks = nullptr;
};
sharding::Traffic matrix_traffic(const OptimizerOptions& options,
                                 const sharding::ShardingPlan& plan, int rank,
                                 const MatrixTraffic& what);

}  // namespace sherd::optim
