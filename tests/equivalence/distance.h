/// How far runs are from one another whose sums are taken in parts, so that bits differ.
#pragma once

#include <cmath>
#include <vector>

namespace sherd::testing {

/// Euclidean, in f64.
inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    squares += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  }
  return std::sqrt(squares);
}
inline double length(const std::vector<float>& a) {
  return distance(a, std::vector<float>(a.size()));
}

}  // namespace sherd::testing
