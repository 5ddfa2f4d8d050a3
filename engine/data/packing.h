/// Packs pieces of text into rows, for a whole epoch at once. Orders the rows so that the rows of
/// one step cost about the same.
///
/// Both are pure functions of their arguments. A row's cost is its attention cost: the sum of the
/// squares of its pieces' lengths.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sherd::data {

/// Row r holds pieces[begins[r]], ..., pieces[begins[r + 1] - 1], one after the other.
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

/// Best fit, longest first (Ding et al. 2024, arXiv:2404.10830, §3): each piece goes to the row
/// that it leaves with the least room. `order` lists every piece once; among pieces of equal
/// length, those listed first are placed first. How full the rows become depends on the lengths
/// alone.
/// Cost     O(n log(capacity))
PackedRows best_fit(std::span<const std::int32_t> lengths, std::span<const std::int32_t> order,
                    std::int64_t capacity);

/// One piece a row, in `order`.
PackedRows one_each(std::span<const std::int32_t> order);

/// How rows are distributed over steps.
struct RowsOfSteps {
  std::int64_t rows_per_step = 1;
  std::int64_t first_row =
      0;  ///< the epoch's first row, counted from the run's first row: where it begins in a step
  std::uint64_t key = 0;
};
/// Row numbers, shuffled by the key. The rows of each sixteen whole steps are then sorted by cost
/// and dealt out to the steps, and the steps are shuffled. So a rank seldom waits for a rank with
/// more expensive rows.
std::vector<std::int32_t> order_of_rows(std::span<const std::int64_t> costs,
                                        const RowsOfSteps& steps);

}  // namespace sherd::data
