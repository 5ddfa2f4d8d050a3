/// Converts the elements of each type to units (pack.h), eight at a time.
///
/// With x at depth 0 and `step` elements to the next one:
///   one      unit u
///   across   unit u of eight neighbouring lines: x, x + 1, ... x + 7
///   along    the units u .. u + 7 of a line; u is a multiple of 8, and none is beyond the depth
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/dtype.h"
#include "kernels/cpu/matmul/pack.h"
#include "kernels/cpu/vectors.h"

namespace sherd::kernels::cpu {

struct Floats {
  using Element = float;
  static constexpr int kPerUnit = 1;
  static constexpr DType kDType = DType::kF32;
  static constexpr Units kUnits = Units::kFloats;

  static float one(const float* x, std::int64_t step, std::int64_t u, std::int64_t) {
    return x[u * step];
  }
  static Float8 across(const float* x, std::int64_t step, std::int64_t u, std::int64_t) {
    return load8(x + u * step);
  }
  static Float8 along(const float* x, std::int64_t u) { return load8(x + u); }
};

struct WidenedF16 {
  using Element = Float16;
  static constexpr int kPerUnit = 1;
  static constexpr DType kDType = DType::kF16;
  static constexpr Units kUnits = Units::kFloats;

  static Float8 widened(const Float16* x) {
#ifdef __F16C__
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
#else
    Float8 value;
    for (int i = 0; i < 8; ++i) value[i] = static_cast<float>(x[i]);
    return value;
#endif
  }
  static float one(const Float16* x, std::int64_t step, std::int64_t u, std::int64_t) {
    return static_cast<float>(x[u * step]);
  }
  static Float8 across(const Float16* x, std::int64_t step, std::int64_t u, std::int64_t) {
    return widened(x + u * step);
  }
  static Float8 along(const Float16* x, std::int64_t u) {
    return widened(x + u);
  }
};

struct SwappedBF16 {
  using Element = BFloat16;
  static constexpr int kPerUnit = 1;
  static constexpr DType kDType = DType::kBF16;
  static constexpr Units kUnits = Units::kFloats;

  static Float8 widened(const BFloat16* x) { return std::bit_cast<Float8>(widened_bits(x) << 16); }
  static float one(const BFloat16* x, std::int64_t step, std::int64_t u, std::int64_t depth) {
    const std::int64_t k = u ^ 1;
    return k < depth ? static_cast<float>(x[k * step]) : 0.0f;
  }
  static Float8 across(const BFloat16* x, std::int64_t step, std::int64_t u, std::int64_t depth) {
    const std::int64_t k = u ^ 1;
    return k < depth ? widened(x + k * step) : Float8{};
  }
  static Float8 along(const BFloat16* x, std::int64_t u) {
    const Float8 in_order = widened(x + u);
    return __builtin_shufflevector(in_order, in_order, 1, 0, 3, 2, 5, 4, 7, 6);
  }
};

template <Units kKind>
struct PairsOfBF16 {
  using Element = BFloat16;
  static constexpr int kPerUnit = 2;
  static constexpr DType kDType = DType::kBF16;
  static constexpr Units kUnits = kKind;

  static float one(const BFloat16* x, std::int64_t step, std::int64_t u, std::int64_t depth) {
    const std::uint32_t even = 2 * u < depth ? x[2 * u * step].bits : 0u;
    const std::uint32_t odd = 2 * u + 1 < depth ? x[(2 * u + 1) * step].bits : 0u;
    return std::bit_cast<float>(odd << 16 | even);
  }
  static Float8 across(const BFloat16* x, std::int64_t step, std::int64_t u, std::int64_t depth) {
    const Bits8 even = 2 * u < depth ? widened_bits(x + 2 * u * step) : Bits8{};
    const Bits8 odd = 2 * u + 1 < depth ? widened_bits(x + (2 * u + 1) * step) : Bits8{};
    return std::bit_cast<Float8>(odd << 16 | even);
  }
  static Float8 along(const BFloat16* x, std::int64_t u) { return load<Float8>(x + 2 * u); }
};

// Eight rows of eight floats, of which the first `kRows` are given, transposed: column[k] is their
// column k.
template <int kRows>
inline void transpose(const Float8* given, Float8* column) {
  Float8 row[8], half[8];
  for (int i = 0; i < 8; ++i) row[i] = given[std::min(i, kRows - 1)];
  for (int i = 0; i < 4; ++i) {
    half[2 * i] = __builtin_shufflevector(row[2 * i], row[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    half[2 * i + 1] =
        __builtin_shufflevector(row[2 * i], row[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      const Float8 x = half[4 * i + j], y = half[4 * i + 2 + j];
      row[4 * i + j] = __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13);
      row[4 * i + 2 + j] = __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    column[i] = __builtin_shufflevector(row[i], row[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    column[i + 4] = __builtin_shufflevector(row[i], row[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

}  // namespace sherd::kernels::cpu
