#include "kernels/eight_bits.h"

#include <algorithm>
#include <cmath>

namespace sherd::kernels {
namespace {

EightBitMap make_map(bool has_signs) {
  const std::array<float, 256> values = dynamic_values(has_signs);
  EightBitMap map;
  map.zero = static_cast<int>(std::ranges::find(values, 0.0f) - values.begin());
  map.keeps_positive = !has_signs;
  for (int i = 0; i < 256; ++i) {
    map.value[static_cast<std::uint8_t>(i - map.zero)] = values[static_cast<std::size_t>(i)];
  }
  for (std::size_t i = 0; i < 255; ++i) map.middle[i] = (values[i] + values[i + 1]) / 2.0f;
  return map;
}

}  // namespace

// In f32, as bitsandbytes makes them: the last bits count where a number is between two values.
std::array<float, 256> dynamic_values(bool has_signs) {
  std::array<float, 256> values;
  std::size_t count = 0;
  for (int exponent = 0; exponent <= 6; ++exponent) {
    const int parts = has_signs ? 1 << exponent : 2 << exponent;
    const double power = std::pow(10.0, exponent - 6);
    const float step = (1.0f - 0.1f) / static_cast<float>(parts);
    const auto bound = [&](int i) {  // the second half is counted from the end
      return i < (parts + 1) / 2 ? std::fma(step, static_cast<float>(i), 0.1f)
                                 : std::fma(-step, static_cast<float>(parts - i), 1.0f);
    };
    for (int i = 0; i < parts; ++i) {
      const float middle = (bound(i) + bound(i + 1)) / 2.0f;
      const float value = static_cast<float>(power) * middle;
      values[count++] = value;
      if (has_signs) values[count++] = -value;
    }
  }
  values[count++] = 0.0f;
  values[count++] = 1.0f;
  std::sort(values.begin(), values.end());
  return values;
}

const EightBitMap& eight_bit_map(bool has_signs) {
  static const EightBitMap with_signs = make_map(true), without = make_map(false);
  return has_signs ? with_signs : without;
}

}  // namespace sherd::kernels
