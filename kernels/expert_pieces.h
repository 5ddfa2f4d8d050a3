/// How the rows of experts that are sorted by expert are cut into pieces and rounds
/// (kernels/experts.h), for host code of every device.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/expert_rows.h"

namespace sherd::kernels {

/// Calls `round(pieces)` for all rows, as many whole pieces at a time as `buffer_rows` has room
/// for. `rows_of(e)`: rows of expert e.
template <class RowsOf, class Round>
void for_each_expert_round(const ExpertsShape& shape, const RowsOf& rows_of, const Round& round) {
  static thread_local std::vector<ExpertPiece> pieces;
  pieces.clear();
  std::int64_t rows = 0, begin = 0;
  for (std::int64_t e = 0; e < shape.experts; ++e) {
    const std::int64_t end = begin + rows_of(e);
    for (std::int64_t first = begin; first < end; first += kExpertPiece) {
      const std::int64_t count = std::min<std::int64_t>(kExpertPiece, end - first);
      if (rows + count > shape.buffer_rows) {
        round(std::as_const(pieces));
        pieces.clear();
        rows = 0;
      }
      pieces.push_back({static_cast<int>(e), 0, first, count, first == begin});
      rows += count;
    }
    begin = end;
  }
  if (rows > 0) round(std::as_const(pieces));
}

/// Neighbouring pieces of one expert. All but the last have kExpertPiece rows.
struct ExpertRun {
  std::int64_t expert = 0;
  RowRange rows;  ///< of the list that pieces' rows are counted in
  bool begins = true;
};
inline std::vector<ExpertRun> expert_runs(const std::vector<ExpertPiece>& pieces) {
  std::vector<ExpertRun> runs;
  for (const ExpertPiece& piece : pieces) {
    if (runs.empty() || runs.back().expert != piece.expert) {
      runs.push_back({piece.expert, {piece.first, piece.count}, piece.begins});
    } else {
      runs.back().rows.count += piece.count;
    }
  }
  return runs;
}

/// The rows of neighbouring pieces.
inline RowRange range_of(const std::vector<ExpertPiece>& pieces) {
  const std::int64_t first = pieces.front().first;
  return {first, pieces.back().first + pieces.back().count - first};
}

}  // namespace sherd::kernels
