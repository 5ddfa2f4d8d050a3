#include "engine/train/units/cut_pieces.h"

#include <algorithm>

namespace sherd::engine {

std::vector<CutPiece> pieces_of(const ParameterCut& cut, std::int64_t first, std::int64_t count,
                                PiecesFor purpose) {
  std::vector<CutPiece> pieces;
  std::int64_t before = 0;  // elements of the part in the boxes passed
  // A tensor of one dimension is a row to a checkpoint, and a column to a box.
  const bool is_matrix = cut.shape.size() > 1;
  for (const auto& [box, counts] : cut.held) {
    const std::int64_t begin = std::max(first, before);
    const std::int64_t end = std::min(first + count, before + box.numel());
    if (begin < end && (counts || purpose == PiecesFor::kLoading)) {
      const bool is_band = is_matrix && box.num_columns < cut.columns();
      pieces.push_back(
          {begin, box.first_row * box.num_columns + begin - before, end - begin,
           is_band ? sharding::Band{box.first_column, box.num_columns} : sharding::Band{}});
    }
    before += box.numel();
  }
  return pieces;
}

}  // namespace sherd::engine
