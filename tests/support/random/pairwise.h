/// Pairwise cover of a grid of factors: rows in which every pair of values of every two factors
/// occurs.
#pragma once

#include <cstddef>
#include <vector>

namespace sherd::testing {

/// `sizes[f]`: number of values of factor f. Each row has one index per factor. Deterministic.
std::vector<std::vector<int>> pairwise_cover(const std::vector<int>& sizes);

/// Calls `use` with every row of the full product.
template <class Use>
void for_full_matmul(const std::vector<int>& sizes, Use&& use) {
  std::vector<int> row(sizes.size(), 0);
  while (true) {
    use(row);
    std::size_t factor = 0;
    while (factor < sizes.size() && ++row[factor] == sizes[factor]) row[factor++] = 0;
    if (factor == sizes.size()) return;
  }
}

}  // namespace sherd::testing
