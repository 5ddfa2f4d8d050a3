/// The arithmetic of kernels/block_codec.h on one element and one scale, for host and device.
#pragma once

#include <bit>
#include <cstdint>

#include "core/host_device.h"
#include "kernels/block_codec.h"

namespace sherd::kernels {

/// Elements as bits: without its sign, a number that isn't finite is at least this.
inline constexpr std::uint32_t kNotFinite = 0x7f800000u;
/// A scale, which is bf16, as bits: the flag of a block that isn't finite.
inline constexpr std::uint16_t kFlaggedScale = 0x7f80u;
/// The sum of this and a number below 2^22 is that number rounded to an integer, a tie to even.
inline constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23

SHERD_HOST_DEVICE inline constexpr float largest_code(BlockFormat format) {
  return format == BlockFormat::kInt8 ? 127.0f : 7.0f;
}

/// The scale of a block whose largest absolute value has the bits `most`.
SHERD_HOST_DEVICE inline std::uint16_t scale_bits(BlockFormat format, std::uint32_t most) {
  if (most >= kNotFinite) return kFlaggedScale;
  const float exact = std::bit_cast<float>(most) / largest_code(format);
  return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(exact) + 0xffffu) >> 16);
}
SHERD_HOST_DEVICE inline float scale_value(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// The code of an element of a block with a scale above 0 and without the flag.
SHERD_HOST_DEVICE inline int code_of(float x, float scale) {
  const float sum = x / scale + kToInteger;
  return std::bit_cast<std::int32_t>(sum) - std::bit_cast<std::int32_t>(kToInteger);
}
/// The same with the flag.
SHERD_HOST_DEVICE inline int flagged_code(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x), size = bits & 0x7fffffffu;
  if (size < kNotFinite) return 0;
  if (size > kNotFinite) return 2;
  return bits == size ? 1 : -1;
}
SHERD_HOST_DEVICE inline float flagged_value(int code) {
  if (code == 0) return 0.0f;
  const std::uint32_t nan = 0x7fc00000u, sign = code < 0 ? 0x80000000u : 0u;
  return std::bit_cast<float>(code == 2 ? nan : kNotFinite | sign);
}

/// A byte of int4 codes, and the codes in it.
SHERD_HOST_DEVICE inline std::uint8_t two_codes(int first, int second) {
  return static_cast<std::uint8_t>((first & 15) << 4 | (second & 15));
}
SHERD_HOST_DEVICE inline int first_code(std::uint8_t byte) {
  return static_cast<std::int8_t>(byte) >> 4;
}
SHERD_HOST_DEVICE inline int second_code(std::uint8_t byte) {
  return static_cast<std::int8_t>(static_cast<std::uint8_t>(byte << 4)) >> 4;
}

}  // namespace sherd::kernels
