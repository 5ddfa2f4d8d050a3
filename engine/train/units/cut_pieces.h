/// A cut parameter as checkpoints see it: a rank's part, as pieces of the whole tensor.
#pragma once

#include <vector>

#include "core/parameter.h"
#include "sharding/state/state.h"

namespace sherd::engine {

/// Consecutive elements of a rank's part of a parameter that are consecutive in a band of the
/// whole.
struct CutPiece {
  std::int64_t in_part = 0;  ///< index of the first element in the part
  std::int64_t first_element = 0, count = 0;
  sharding::Band band{};
};

/// Whether the pieces are for a save or a load. If boxes have copies, one rank's are saved, and all
/// are loaded.
enum class PiecesFor { kSaving, kLoading };

/// Elements [first, first + count) of the part, as a slice of a flat buffer holds them: one piece
/// for each box that they lie in.
std::vector<CutPiece> pieces_of(const ParameterCut& cut, std::int64_t first, std::int64_t count,
                                PiecesFor purpose);

}  // namespace sherd::engine
