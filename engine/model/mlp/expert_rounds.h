/// Which rows travel between expert ranks, in rounds over a buffer of planned size. Every rank
/// works the same plan out from the counts that all ranks have exchanged. Pure arithmetic.
///
///   an owner's rows, in order     by source rank, then expert, then piece of at most kExpertPiece
///                                 rows
///   a round                       as many whole pieces, in this order, as its buffer has rows for;
///                                 but a source only once all owners have had, in this round or
///                                 before, the source two places ahead
///   rounds                        until the slowest owner has all rows; the others have empty ones
///
/// Sources come first, since an owner forms the weight gradient of one source's micro-batch after
/// another (sharding/zero/gradient_reduction.h). It has two slots for these gradients: it begins
/// the one of source s + 2 when that of source s has been reduced, with ranks of other expert
/// groups. If owners of a group could be any number of sources apart, two groups could wait for
/// each other. A buffer for all rows makes it one round, in which all ranks send at once.
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
  int complete_sources = 0;                  ///< whose rows all owners have had when the round ends
};

/// `counts` [R, E]: rows that each rank has for each expert. `buffer_rows`: at least one piece, or
/// all rows.
std::vector<ExpertRound> expert_rounds(std::span<const std::int32_t> counts, int ranks, int rank,
                                       std::int64_t buffer_rows);

/// For plans: bounds of the number of rounds if one owner has `rows` rows and no other has more of
/// any of the R sources.
std::int64_t fewest_rounds(const kernels::ExpertsShape& owned, std::int64_t rows);
std::int64_t most_rounds(const kernels::ExpertsShape& owned, std::int64_t rows, int ranks);

}  // namespace sherd::model
