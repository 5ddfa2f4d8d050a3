#include "checkpoint/format/finite.h"

#include <algorithm>
#include <cstring>

namespace sherd::checkpoint {
namespace {

// Infinities and NaNs are the values whose exponent bits are all ones, and no exponent is larger. A
// maximum vectorises; a search that may end early doesn't.
template <class Bits, Bits kExponent>
std::int64_t first_of(std::string_view bytes) {
  const auto bits_of = [&bytes](std::size_t i) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + i * sizeof bits, sizeof bits);
    return static_cast<Bits>(bits & kExponent);
  };
  const std::size_t count = bytes.size() / sizeof(Bits);
  Bits largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, bits_of(i));
  if (largest != kExponent) return -1;
  std::size_t first = 0;
  while (bits_of(first) != kExponent) ++first;
  return static_cast<std::int64_t>(first);
}

}  // namespace

std::int64_t first_not_finite(std::string_view bytes, DType dtype) {
  if (dtype == DType::kU8) return -1;
  return dtype == DType::kF32 ? first_of<std::uint32_t, 0x7f800000u>(bytes)
                              : first_of<std::uint16_t, std::uint16_t{0x7f80}>(bytes);
}

}  // namespace sherd::checkpoint
