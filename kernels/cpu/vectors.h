/// Vectors of eight numbers, including bf16. They use GCC's vector types, so nearly the same code
/// serves every processor.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__FMA__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

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

/// x * y + z, rounded once.
inline Float8 multiply_add(Float8 x, Float8 y, Float8 z) {
#if defined(__FMA__)
  return _mm256_fmadd_ps(x, y, z);
#elif defined(__ARM_NEON)
  struct Halves {
    float32x4_t low, high;
  };
  const auto [x0, x1] = std::bit_cast<Halves>(x);
  const auto [y0, y1] = std::bit_cast<Halves>(y);
  const auto [z0, z1] = std::bit_cast<Halves>(z);
  return std::bit_cast<Float8>(Halves{vfmaq_f32(z0, x0, y0), vfmaq_f32(z1, x1, y1)});
#else
  for (int i = 0; i < 8; ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return z;
#endif
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
