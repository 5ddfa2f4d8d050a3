/// Exact sums as kernels store them (core/exact_sum.h), for tests.
#pragma once

#include <algorithm>
#include <array>

#include "core/exact_sum.h"
#include "tests/support/values/tensors.h"

namespace sherd::test {

inline OwnedTensor exact_sums(std::int64_t count) {
  return {DType::kF64, count * ExactSum::kNumbers};
}

/// Each sum, rounded.
inline Values values_of_sums(const OwnedTensor& sums) {
  const Values numbers = sums.values();
  Values values;
  for (std::size_t first = 0; first < numbers.size(); first += ExactSum::kNumbers) {
    values.push_back(ExactSum(std::span(numbers).subspan(first, ExactSum::kNumbers)).value());
  }
  return values;
}

}  // namespace sherd::test
