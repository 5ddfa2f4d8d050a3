/// Vectors of eight numbers, including bf16. They use GCC's vector types, so the same code serves
/// every processor.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace sherd::kernels::cpu {

using Float8 = float __attribute__((vector_size(32)));
using Bits8 = std::uint32_t __attribute__((vector_size(32)));
using Half8 = std::uint16_t __attribute__((vector_size(16)));

template <class Vector>
inline Vector load(const void* x) {
  Vector value;
  std::memcpy(&value, x, sizeof value);
  return value;
}
inline Float8 load8(const float* x) {
  return load<Float8>(x);
}
inline void store8(float* x, Float8 value) {
  std::memcpy(x, &value, sizeof value);
}

/// 16 bits each, in the upper half, above zeros.
inline Bits8 widened_bits(const void* x) {
  return __builtin_convertvector(load<Half8>(x), Bits8);
}

/// The upper halves are x rounded to bf16, to nearest even, as BFloat16 does; the lower halves are
/// undefined.
inline Bits8 bits_rounded_to_bf16(Float8 x) {
  const auto wide = std::bit_cast<Bits8>(x);
  const Bits8 nearest = wide + 0x7fffu + ((wide >> 16) & 1u);
  return x != x ? wide | 0x400000u : nearest;
}

}  // namespace sherd::kernels::cpu
