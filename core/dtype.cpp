#include "core/dtype.h"

#include <cmath>

namespace sherd::detail {

// Works on the integer pattern so that it is right for subnormals without relying on the rounding
// mode of the machine; F16C does the same in one instruction where there is one.
std::uint16_t f16_bits_portable(float value) {
  const auto wide = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((wide >> 16) & 0x8000u);
  const std::uint32_t magnitude = wide & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude >= 0x38800000u) {  // normal in f16
    const std::uint32_t rebased = magnitude - 0x38000000u;
    return static_cast<std::uint16_t>(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13));
  }
  // Subnormal: units of 2^-24. nearbyint in the default mode is ties-to-even.
  const float units = std::nearbyint(std::bit_cast<float>(magnitude) * 16777216.0f);
  return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(units));
}

float f16_value_portable(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) {
    const std::uint32_t quiet = mantissa ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13) | quiet);
  }
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) / 16777216.0f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

}  // namespace sherd::detail
