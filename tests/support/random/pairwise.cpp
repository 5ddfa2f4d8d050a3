#include "tests/support/random/pairwise.h"

#include <set>
#include <tuple>

namespace sherd::testing {
namespace {

using Pair = std::tuple<std::size_t, int, std::size_t, int>;  // factor, value, later factor, value

std::set<Pair> all_pairs(const std::vector<int>& sizes) {
  std::set<Pair> pairs;
  for (std::size_t f = 0; f < sizes.size(); ++f) {
    for (std::size_t g = f + 1; g < sizes.size(); ++g) {
      for (int a = 0; a < sizes[f]; ++a) {
        for (int b = 0; b < sizes[g]; ++b) pairs.emplace(f, a, g, b);
      }
    }
  }
  return pairs;
}

}  // namespace

// Greedy: a row starts with a pair that is missing, then each factor takes the value that covers
// most of what is missing with the values chosen so far.
std::vector<std::vector<int>> pairwise_cover(const std::vector<int>& sizes) {
  std::set<Pair> missing = all_pairs(sizes);
  std::vector<std::vector<int>> rows;
  while (!missing.empty()) {
    std::vector<int> row(sizes.size(), -1);
    const auto [f, a, g, b] = *missing.begin();
    row[f] = a;
    row[g] = b;
    const auto covered_by = [&](std::size_t factor, int value) {
      int count = 0;
      for (std::size_t other = 0; other < sizes.size(); ++other) {
        if (other == factor || row[other] < 0) continue;
        count += other < factor ? missing.contains({other, row[other], factor, value})
                                : missing.contains({factor, value, other, row[other]});
      }
      return count;
    };
    for (std::size_t factor = 0; factor < sizes.size(); ++factor) {
      if (row[factor] >= 0) continue;
      int best = 0, best_count = -1;
      for (int value = 0; value < sizes[factor]; ++value) {
        // Equal values take turns from row to row.
        const int turned = (value + static_cast<int>(rows.size())) % sizes[factor];
        const int count = covered_by(factor, turned);
        if (count > best_count) {
          best_count = count;
          best = turned;
        }
      }
      row[factor] = best;
    }
    for (std::size_t p = 0; p < sizes.size(); ++p) {
      for (std::size_t q = p + 1; q < sizes.size(); ++q) missing.erase({p, row[p], q, row[q]});
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace sherd::testing
