#include "engine/data/packing.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "core/error.h"
#include "engine/data/shuffle.h"

namespace sherd::data {
namespace {

// Piece numbers sorted by length, the longest first, equal lengths in `order`: a counting sort.
std::vector<std::int32_t> longest_first(std::span<const std::int32_t> lengths,
                                        std::span<const std::int32_t> order,
                                        std::int64_t capacity) {
  std::vector<std::int64_t> next(static_cast<std::size_t>(capacity) + 2);
  const auto place = [capacity](std::int32_t length) {
    SHERD_CHECK(length >= 1 && length <= capacity, "a piece of {} tokens in rows of {}", length,
                capacity);
    return static_cast<std::size_t>(capacity - length);
  };
  for (const std::int32_t length : lengths) ++next[place(length) + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  std::vector<std::int32_t> sorted(order.size());
  for (const std::int32_t piece : order) {
    auto& at = next[place(lengths[static_cast<std::size_t>(piece)])];
    sorted[static_cast<std::size_t>(at++)] = piece;
  }
  return sorted;
}

// Rows that have room, found by how much they have.
class OpenRows {
 public:
  explicit OpenRows(std::int64_t capacity) : rows_(static_cast<std::size_t>(capacity) + 1) {}

  /// The row with the least room that `length` fits in, which is taken out; or -1.
  std::int64_t take(std::int64_t length, std::int64_t& room) {
    const auto found = rooms_.lower_bound(length);
    if (found == rooms_.end()) return -1;
    room = *found;
    std::vector<std::int64_t>& rows = rows_[static_cast<std::size_t>(room)];
    const std::int64_t row = rows.back();
    rows.pop_back();
    if (rows.empty()) rooms_.erase(found);
    return row;
  }
  void put(std::int64_t row, std::int64_t room) {
    if (room == 0) return;
    rows_[static_cast<std::size_t>(room)].push_back(row);
    rooms_.insert(room);
  }

 private:
  std::vector<std::vector<std::int64_t>> rows_;
  std::set<std::int64_t> rooms_;  ///< that some row has
};

}  // namespace

PackedRows best_fit(std::span<const std::int32_t> lengths, std::span<const std::int32_t> order,
                    std::int64_t capacity) {
  SHERD_CHECK(lengths.size() == order.size(), "{} lengths, {} pieces", lengths.size(),
              order.size());
  const std::vector<std::int32_t> sorted = longest_first(lengths, order, capacity);
  OpenRows open(capacity);
  std::vector<std::int32_t> row_of(sorted.size());  // of sorted[i]
  std::vector<std::int64_t> counts;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const std::int64_t length = lengths[static_cast<std::size_t>(sorted[i])];
    std::int64_t room = capacity;
    std::int64_t row = open.take(length, room);
    if (row < 0) {
      row = std::ssize(counts);
      counts.push_back(0);
    }
    ++counts[static_cast<std::size_t>(row)];
    row_of[i] = static_cast<std::int32_t>(row);
    open.put(row, room - length);
  }
  PackedRows rows;
  rows.begins.resize(counts.size() + 1);
  std::partial_sum(counts.begin(), counts.end(), rows.begins.begin() + 1);
  rows.pieces.resize(sorted.size());
  std::vector<std::int64_t> next(rows.begins.begin(), rows.begins.end() - 1);
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    rows.pieces[static_cast<std::size_t>(next[static_cast<std::size_t>(row_of[i])]++)] = sorted[i];
  }
  return rows;
}

PackedRows one_each(std::span<const std::int32_t> order) {
  PackedRows rows;
  rows.begins.resize(order.size() + 1);
  std::iota(rows.begins.begin(), rows.begins.end(), 0);
  rows.pieces.assign(order.begin(), order.end());
  return rows;
}

std::vector<std::int32_t> order_of_rows(std::span<const std::int64_t> costs,
                                        const RowsOfSteps& steps) {
  constexpr std::int64_t kSteps = 16;
  const std::int64_t n = std::ssize(costs), G = steps.rows_per_step;
  std::vector<std::int32_t> order(static_cast<std::size_t>(n));
  const Permutation shuffled(static_cast<std::uint64_t>(n), steps.key);
  for (std::int64_t i = 0; i < n; ++i) {
    order[static_cast<std::size_t>(i)] =
        static_cast<std::int32_t>(shuffled(static_cast<std::uint64_t>(i)));
  }
  const std::int64_t begun = (G - steps.first_row % G) % G;  // rows of the step before
  std::vector<std::int32_t> sorted;
  for (std::int64_t first = begun; first + G <= n; first += kSteps * G) {
    const std::int64_t num_steps = std::min(kSteps, (n - first) / G);
    const auto begin = order.begin() + first, end = begin + num_steps * G;
    sorted.assign(begin, end);
    std::stable_sort(sorted.begin(), sorted.end(), [&](std::int32_t a, std::int32_t b) {
      return costs[static_cast<std::size_t>(a)] < costs[static_cast<std::size_t>(b)];
    });
    const Permutation step_order(static_cast<std::uint64_t>(num_steps), hash_of(steps.key, first));
    for (std::int64_t step = 0; step < num_steps; ++step) {
      const auto from = static_cast<std::int64_t>(step_order(static_cast<std::uint64_t>(step)));
      std::copy_n(sorted.begin() + from * G, G, begin + step * G);
    }
  }
  return order;
}

}  // namespace sherd::data
