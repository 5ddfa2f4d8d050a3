/// Converts runs of elements between a storage type and f32. An element's result doesn't depend on
/// its position.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/dtype.h"
#include "kernels/cpu/vectors.h"

namespace sherd::kernels::cpu {

/// out[i] = in[i], exactly.
template <class T>
inline void widen(const T* in, float* out, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(in[i]);
}
template <>
inline void widen(const float* in, float* out, std::int64_t count) {
  std::memcpy(out, in, static_cast<std::size_t>(count) * sizeof(float));
}

/// out[i] = in[i], rounded to nearest even.
template <class T>
inline void narrow(const float* in, T* out, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(in[i]);
}
template <>
inline void narrow(const float* in, float* out, std::int64_t count) {
  std::memcpy(out, in, static_cast<std::size_t>(count) * sizeof(float));
}

// GCC doesn't vectorise rounding to bf16 or, for short rows, widening from it.
template <>
inline void widen(const BFloat16* in, float* out, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) store8(out + i, std::bit_cast<Float8>(widened_bits(in + i) << 16));
  for (; i < count; ++i) out[i] = static_cast<float>(in[i]);
}
inline void store_rounded8(Float8 values, BFloat16* out) {
  const Half8 bits = __builtin_convertvector(bits_rounded_to_bf16(values) >> 16, Half8);
  std::memcpy(static_cast<void*>(out), &bits, sizeof bits);
}
template <>
inline void narrow(const float* in, BFloat16* out, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) store_rounded8(load8(in + i), out + i);
  for (; i < count; ++i) out[i] = static_cast<BFloat16>(in[i]);
}

#ifdef __F16C__
// GCC doesn't vectorise the scalar conversions of binary16.
template <>
inline void widen(const Float16* in, float* out, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(bits));
  }
  for (; i < count; ++i) out[i] = static_cast<float>(in[i]);
}
template <>
inline void narrow(const float* in, Float16* out, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 values = _mm256_loadu_ps(in + i);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < count; ++i) out[i] = static_cast<Float16>(in[i]);
}
#endif

/// Converts rows that are `in_stride` apart into rows `out_stride` apart.
template <class T>
inline void widen_rows(const T* in, std::int64_t in_stride, float* out, std::int64_t out_stride,
                       std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) widen(in + r * in_stride, out + r * out_stride, columns);
}
template <class T>
inline void narrow_rows(const float* in, std::int64_t in_stride, T* out, std::int64_t out_stride,
                        std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) narrow(in + r * in_stride, out + r * out_stride, columns);
}

/// out[i] += in[i], one f32 addition, rounded to T.
template <class T>
inline void add_narrowed(const float* in, T* out, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<T>(static_cast<float>(out[i]) + in[i]);
  }
}
template <>
inline void add_narrowed(const float* in, BFloat16* out, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const auto before = std::bit_cast<Float8>(widened_bits(out + i) << 16);
    store_rounded8(before + load8(in + i), out + i);
  }
  for (; i < count; ++i) out[i] = static_cast<BFloat16>(static_cast<float>(out[i]) + in[i]);
}

}  // namespace sherd::kernels::cpu
