/// An element's bits don't depend on where it lies.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "tests/support/values/tensors.h"

namespace sherd::kernels {

// `run(first, n)` computes elements [first, first + n) alone; every start next to a vector's border,
// odd lengths, short and long.
inline void expect_parts_equal(
    const test::OwnedTensor& whole,
    const std::function<test::OwnedTensor(std::int64_t, std::int64_t)>& run) {
  for (std::int64_t first = 0; first < 10; ++first) {
    for (const std::int64_t n : {std::int64_t{1}, std::int64_t{13}, whole.numel() - first - 1}) {
      EXPECT_TRUE(test::same_bits(run(first, n), ConstTensor(whole).part(first, n)))
          << "elements " << first << " .. " << first + n - 1 << " alone";
    }
  }
}

}  // namespace sherd::kernels
