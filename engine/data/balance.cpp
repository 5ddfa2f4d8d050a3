#include "engine/data/balance.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace sherd::data {
namespace {

std::int64_t largest_prime_factor(std::int64_t number) {
  std::int64_t largest = 1;
  for (std::int64_t factor = 2; factor <= number; ++factor) {
    while (number % factor == 0) {
      number /= factor;
      largest = factor;
    }
  }
  return largest;
}

using Rows = std::vector<std::int32_t>;  // the most expensive first

void divide(const Rows& rows, std::span<const std::int64_t> costs, bool reversed, Rows& order) {
  if (rows.size() == 1) return order.push_back(rows[0]);
  const auto num_parts = static_cast<std::size_t>(largest_prime_factor(std::ssize(rows)));
  const std::size_t room = rows.size() / num_parts;
  std::vector<Rows> parts(num_parts);
  std::vector<std::int64_t> sums(num_parts, 0);
  for (const std::int32_t row : rows) {
    std::size_t least = num_parts;
    for (std::size_t part = 0; part < num_parts; ++part) {
      if (parts[part].size() == room) continue;
      if (least == num_parts || sums[part] < sums[least]) least = part;
    }
    parts[least].push_back(row);
    sums[least] += costs[static_cast<std::size_t>(row)];
  }
  if (reversed) std::ranges::reverse(parts);
  for (std::size_t part = 0; part < num_parts; ++part) {
    divide(parts[part], costs, reversed != (part % 2 == 1), order);
  }
}

}  // namespace

std::vector<std::int32_t> balanced_order(std::span<const std::int64_t> costs) {
  Rows rows(costs.size());
  std::iota(rows.begin(), rows.end(), 0);
  if (rows.empty() || std::ranges::adjacent_find(costs, std::not_equal_to{}) == costs.end()) {
    return rows;
  }
  std::ranges::stable_sort(rows, std::greater{},
                           [&](std::int32_t row) { return costs[static_cast<std::size_t>(row)]; });
  Rows order;
  divide(rows, costs, false, order);
  return order;
}

}  // namespace sherd::data
