#include "tests/support/oracles/oracle_dtype.h"

#include <cmath>
#include <limits>

namespace sherd::oracle {
namespace {

struct Format {
  int mantissa_bits;
  int bias;
  std::uint16_t infinity;
};

Format format_of(DType dtype) {
  if (dtype == DType::kBF16) return {7, 127, 0x7f80};
  return {10, 15, 0x7c00};
}

}  // namespace

double value_of_bits(DType dtype, std::uint16_t bits) {
  const Format format = format_of(dtype);
  const double sign = (bits & 0x8000) ? -1.0 : 1.0;
  const int magnitude = bits & 0x7fff;
  if (magnitude > format.infinity) return std::numeric_limits<double>::quiet_NaN();
  if (magnitude == format.infinity) return sign * std::numeric_limits<double>::infinity();
  const int exponent = magnitude >> format.mantissa_bits;
  const int mantissa = magnitude & ((1 << format.mantissa_bits) - 1);
  const int hidden = exponent == 0 ? 0 : 1 << format.mantissa_bits;
  const int scale = (exponent == 0 ? 1 : exponent) - format.bias - format.mantissa_bits;
  return sign * std::ldexp(static_cast<double>(hidden + mantissa), scale);
}

std::uint16_t nearest_bits(DType dtype, double value) {
  const Format format = format_of(dtype);
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::abs(value);

  // Patterns of positive values are in the order of their values: search the last one not above.
  std::uint16_t below = 0, above = format.infinity;
  while (above - below > 1) {
    const auto middle = static_cast<std::uint16_t>((below + above) / 2);
    (value_of_bits(dtype, middle) <= magnitude ? below : above) = middle;
  }
  if (std::isinf(magnitude)) return sign | format.infinity;

  // For rounding, infinity is at the place of the next value of the same spacing.
  const double low = value_of_bits(dtype, below);
  const double high =
      above == format.infinity
          ? low + (low - value_of_bits(dtype, static_cast<std::uint16_t>(below - 1)))
          : value_of_bits(dtype, above);
  const double to_low = magnitude - low, to_high = high - magnitude;
  if (to_low == to_high) return sign | (below % 2 == 0 ? below : above);
  return sign | (to_low < to_high ? below : above);
}

}  // namespace sherd::oracle
