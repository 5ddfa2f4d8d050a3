/// Which rows travel between expert ranks, in rounds over a buffer of planned size. Every rank works the same plan out
/// from the counts that all ranks have exchanged. Pure arithmetic.
///
///   an owner's rows, in order     by source rank, then expert, then piece of at most kExpertPiece rows
///   a round                       as many whole pieces, in this order, as its buffer has rows for
///   rounds                        as many as the fullest owner needs; the others have empty ones
///
/// Sources come first, since an owner forms the weight gradient of one source's micro-batch after another
/// (sharding/zero/gradient_reduction.h). A buffer for all rows makes it one round, in which all ranks send at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/expert_rows.h"

namespace sherd::model {

struct ExpertRound {
  std::vector<kernels::RowRange> sends;      ///< by owner: this rank's home rows
  std::vector<kernels::RowRange> receives;   ///< by source: rows of this rank's buffer
  std::vector<kernels::ExpertPiece> pieces;  ///< of this rank's experts
};

/// `counts` [R, E]: rows that each rank has for each expert. `buffer_rows`: at least one piece, or all rows.
std::vector<ExpertRound> expert_rounds(std::span<const std::int32_t> counts, int ranks, int rank,
                                       std::int64_t buffer_rows);

/// Rounds that `ranks` need if the fullest owner has `imbalance` times the mean: for plans.
std::int64_t planned_rounds(const kernels::ExpertsShape& owned, std::int64_t rows_of_rank,
                            double imbalance);

}  // namespace sherd::model
