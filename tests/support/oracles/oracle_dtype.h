/// The two 16-bit formats by IEEE 754's definition of a value, and rounding by search: the nearest
/// of all finite values, ties to the even significand. Slow, exact, and without bit tricks.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace sherd::oracle {

/// (-1)^s 2^(e - bias) 1.m, or 2^(1 - bias) 0.m for e = 0, or infinity, or NaN.
double value_of_bits(DType dtype, std::uint16_t bits);

/// The pattern that `value` (not NaN) rounds to.
std::uint16_t nearest_bits(DType dtype, double value);

}  // namespace sherd::oracle
