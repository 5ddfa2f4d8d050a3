/// Pieces of text are packed into rows, for a whole epoch at once; and the rows are put in an order in
/// which those of one step cost about the same.
///
/// Both are pure functions of their arguments. Costs are those of attention: the sum of the squares
/// of a row's lengths.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sherd::data {

/// Row r holds pieces[begins[r]], ..., pieces[begins[r + 1] - 1], one behind the other.
struct PackedRows {
  std::vector<std::int64_t> begins{0};
  std::vector<std::int32_t> pieces;

  std::int64_t count() const { return std::ssize(begins) - 1; }
  std::span<const std::int32_t> of(std::int64_t row) const {
    const auto r = static_cast<std::size_t>(row);
    return std::span(pieces).subspan(static_cast<std::size_t>(begins[r]),
                                     static_cast<std::size_t>(begins[r + 1] - begins[r]));
  }
};

/// Best fit, the longest first (Ding et al. 2024, arXiv:2404.10830, §3): each piece goes to the row
/// that it leaves with the least room. `order` names every piece once; of pieces of one length the
/// one that it names first goes first. How full rows get depends on the lengths alone.
/// Cost     O(n log(capacity))
PackedRows best_fit(std::span<const std::int32_t> lengths, std::span<const std::int32_t> order,
                    std::int64_t capacity);

/// One piece a row, in `order`.
PackedRows one_each(std::span<const std::int32_t> order);

/// What rows cost, and how they are dealt to steps.
struct RowsOfSteps {
  std::int64_t rows_per_step = 1;
  std::int64_t first_row =
      0;  ///< of the epoch, counted from the run's first: where in a step it begins
  std::uint64_t key = 0;
};
/// Row numbers, shuffled by the key. Of each sixteen whole steps the rows are then sorted by cost and
/// dealt to the steps, and the steps shuffled, so that a rank seldom waits for one with dearer rows.
std::vector<std::int32_t> order_of_rows(std::span<const std::int64_t> costs,
                                        const RowsOfSteps& steps);

}  // namespace sherd::data
