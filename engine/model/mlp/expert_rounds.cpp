#include "engine/model/mlp/expert_rounds.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace sherd::model {
namespace {

// Adds a piece to a range that it follows.
void extend(kernels::RowRange& range, std::int64_t first, std::int64_t count) {
  if (range.count == 0) range.first = first;
  range.count += count;
}

ExpertRound empty_round(int ranks) {
  const auto size = static_cast<std::size_t>(ranks);
  return {std::vector<kernels::RowRange>(size), std::vector<kernels::RowRange>(size), {}};
}

}  // namespace

std::vector<ExpertRound> expert_rounds(std::span<const std::int32_t> counts, int ranks, int rank,
                                       std::int64_t buffer_rows) {
  const std::int64_t experts = std::ssize(counts) / ranks, held = experts / ranks;
  const auto count_of = [&](int source, std::int64_t expert) {
    return std::int64_t{counts[static_cast<std::size_t>(source * experts + expert)]};
  };
  std::vector<ExpertRound> rounds;
  std::int64_t home = 0;  // the first of this rank's rows for the owner's next expert
  for (int owner = 0; owner < ranks; ++owner) {
    std::size_t number = 0;
    std::int64_t filled = 0;
    for (int source = 0; source < ranks; ++source) {
      const bool of_rank = source == rank;
      for (std::int64_t e = 0; e < held; ++e) {
        const std::int64_t rows = count_of(source, owner * held + e);
        for (std::int64_t first = 0; first < rows; first += kernels::kExpertPiece) {
          const std::int64_t count = std::min(kernels::kExpertPiece, rows - first);
          SHERD_CHECK(count <= buffer_rows, "a piece of {} rows in a buffer of {}", count,
                      buffer_rows);
          if (filled + count > buffer_rows) {
            ++number;
            filled = 0;
          }
          if (number == rounds.size()) rounds.push_back(empty_round(ranks));
          ExpertRound& round = rounds[number];
          if (of_rank) extend(round.sends[static_cast<std::size_t>(owner)], home + first, count);
          if (owner == rank) {
            extend(round.receives[static_cast<std::size_t>(source)], filled, count);
            round.pieces.push_back({static_cast<int>(e), source, filled, count, first == 0});
          }
          filled += count;
        }
        if (of_rank) home += rows;
      }
    }
  }
  return rounds;
}

std::int64_t planned_rounds(const kernels::ExpertsShape& owned, std::int64_t rows_of_rank,
                            double imbalance) {
  const auto rows = static_cast<std::int64_t>(
      std::ceil(static_cast<double>(rows_of_rank) * std::max(1.0, imbalance)));
  // A round may leave room for almost a piece.
  const std::int64_t used = std::max<std::int64_t>(
      1, owned.buffer_rows >= rows ? rows : owned.buffer_rows - (kernels::kExpertPiece - 1));
  return std::max<std::int64_t>(1, (rows + used - 1) / used);
}

}  // namespace sherd::model
