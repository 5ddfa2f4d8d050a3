/// Optimizer moments in 8 bits, a scale for every 64 of them (Dettmers et al. 2022,
/// arXiv:2110.02861).
///
///   block    64 elements of a tensor, counted from its first one; the last block may be shorter
///   scale_b  = max |x_i| over block b
///   code_i   = nearest of 256 values to x_i / scale_b, all in f32; a tie gives the lower value
///   x_i     ~= value(code_i) * scale_b, in f32
///
/// The values are those of bitsandbytes' dynamic map. With signs, for first moments: 0, 1, and with
/// both signs the midpoints of 2^k equal parts of [0.1, 1] times 10^(k - 6), for k from 0 to 6; the
/// lowest is -0.993. Without, for second moments: 0, 1, and the midpoints of 2^(k + 1) equal parts.
///
/// One rule differs from bitsandbytes: a positive second moment gets the lowest positive value
/// (3.25e-7 of the scale), never 0. Adam divides by its root, and with 0 a step could be m / eps.
///
/// Bytes are counted from the value 0, so a block of zero bytes is a block of zeros. A block of
/// zeros stays exactly zero. A block with a NaN or an infinity has that as its scale, and becomes
/// NaN.
#pragma once

#include <array>
#include <cstdint>

#include "core/host_device.h"

namespace sherd::kernels {

inline constexpr std::int64_t kEightBitBlock = 64;  ///< elements per scale

inline constexpr std::int64_t eight_bit_blocks(std::int64_t numel) {
  return (numel + kEightBitBlock - 1) / kEightBitBlock;
}

/// The 256 values of a dynamic map, ascending.
std::array<float, 256> dynamic_values(bool has_signs);

struct EightBitMap {
  float value[256];   ///< by byte
  float middle[255];  ///< between neighbours, ascending
  int zero;           ///< the number of values below 0
  bool keeps_positive;
};
/// Host only; a launch passes them by value.
const EightBitMap& eight_bit_map(bool has_signs);

/// The byte for `x`, an element of a block with a scale that isn't 0.
SHERD_HOST_DEVICE inline std::uint8_t eight_bit_code(const EightBitMap& map, float x, float scale) {
  const float ratio = x / scale;
  int below = 0;  // midpoints below the ratio
  for (int step = 128; step > 0; step /= 2) {
    below += map.middle[below + step - 1] < ratio ? step : 0;
  }
  if (map.keeps_positive && below == 0 && x > 0.0f) below = 1;
  return static_cast<std::uint8_t>(below - map.zero);
}

}  // namespace sherd::kernels
