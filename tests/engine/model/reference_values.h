/// What tests of tests/reference's files share: numbers by formula, and digests of tensors.
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

namespace sherd::testing {

using Json = nlohmann::json;

inline std::uint32_t reference_hash(std::uint32_t i, std::uint32_t p) {
  std::uint32_t h = i * 2654435761u + p * 40503u + 12345u;
  h ^= h >> 15;
  h *= 2246822519u;
  return h ^ (h >> 13);
}

inline double u(std::size_t i, std::size_t p) {
  return reference_hash(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(p)) /
             4294967296.0 * 2.0 -
         1.0;
}

struct LeftOut {
  std::size_t first = 0, last = 0;  // elements [first, last)
};

inline double norm_of(const std::vector<float>& values, LeftOut left_out = {}) {
  double sum = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i < left_out.first || i >= left_out.last) sum += double{values[i]} * double{values[i]};
  }
  return std::sqrt(sum);
}

inline double projection_of(const std::vector<float>& values, std::size_t parameter,
                            LeftOut left_out = {}) {
  double sum = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i < left_out.first || i >= left_out.last) sum += double{values[i]} * u(i, 3000 + parameter);
  }
  return sum;
}

}  // namespace sherd::testing
