/// Division rounding up to whole pieces, for non-negative numbers.
#pragma once

#include <cstdint>

namespace sherd::kernels::cpu {

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}
inline std::int64_t round_up(std::int64_t a, std::int64_t b) {
  return ceil_div(a, b) * b;
}

}  // namespace sherd::kernels::cpu
