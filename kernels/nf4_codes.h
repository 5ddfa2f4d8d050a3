/// NF4's tables and its arithmetic on one element, one block and one group, for host and device;
/// the equations are in kernels/nf4.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/host_device.h"
#include "kernels/nf4.h"

namespace sherd::kernels {

/// Ascending values of codes, and the midpoints between neighbours.
struct Nf4Tables {
  float value[16], middle[15];
  float dynamic[256], dynamic_middle[255];  ///< for scales
};
/// Host only; a launch passes them by value.
const Nf4Tables& nf4_tables();

/// The index of the value nearest to x: the number of midpoints below x.
SHERD_HOST_DEVICE inline std::uint8_t nearest_code(const float* middles, int count, float x) {
  int below = 0, after = count;  // the first that isn't below is in this range
  while (below < after) {
    const int half = (below + after) / 2;
    if (middles[half] < x) {
      below = half + 1;
    } else {
      after = half;
    }
  }
  return static_cast<std::uint8_t>(below);
}

SHERD_HOST_DEVICE inline float nf4_inverse(float scale) {
  return 1.0f / (scale > 1e-38f ? scale : 1e-38f);
}
SHERD_HOST_DEVICE inline float within_one(float x) {
  return x < -1.0f ? -1.0f : x > 1.0f ? 1.0f : x;
}
SHERD_HOST_DEVICE inline float largest_of(float a, float b) {
  return a < b ? b : a;
}

/// Writes a block's codes and returns their scale.
SHERD_HOST_DEVICE inline float nf4_encode_block(const float* middles, const float* x,
                                                std::int64_t count, std::uint8_t* codes) {
  float scale = 0.0f;
  for (std::int64_t i = 0; i < count; ++i) scale = largest_of(scale, fabsf(x[i]));
  const float factor = nf4_inverse(scale);
  for (std::int64_t i = 0; i < count; i += 2) {
    const int high = nearest_code(middles, 15, within_one(x[i] * factor));
    const int low = i + 1 < count ? nearest_code(middles, 15, within_one(x[i + 1] * factor)) : 7;
    codes[i / 2] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return scale;
}

SHERD_HOST_DEVICE inline float nf4_value(const float* values, const std::uint8_t* codes,
                                         std::int64_t element) {
  const int byte = codes[element / 2];
  return values[element % 2 == 0 ? byte >> 4 : byte & 15];
}

}  // namespace sherd::kernels
