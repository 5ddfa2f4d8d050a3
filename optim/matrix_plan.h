/// Muon's plan, computed before anything runs and equal on every rank: the matrices, which rank
/// orthogonalises each, the buffers, and the traffic.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "optim/matrix_parts.h"
#include "optim/muon.h"

namespace sherd::optim {

/// One logical matrix of a unit's flat buffer, or this rank's part of it.
struct OwnedMatrix {
  std::int64_t offset = 0;  ///< in the flat buffer
  MatrixPart part;
  int owner = 0;  ///< index among the owners of slices
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

struct MuonBuffers {
  std::vector<std::optional<BufferSpec>> momentum, exp_avg_sq;  // by unit
  std::optional<BufferSpec> update, workspace;
  std::vector<MatrixPart> matrices;  // of all units
};
MuonBuffers buffers_of(const OptimizerOptions& options, const sharding::ShardingPlan& plan,
                       int rank);
/// The same buffers as a list.
std::vector<BufferSpec> muon_buffers(const OptimizerOptions& options,
                                     const sharding::ShardingPlan& plan, int rank);

sharding::Traffic muon_traffic(const OptimizerOptions& options, const sharding::ShardingPlan& plan,
                               int rank);

}  // namespace sherd::optim
