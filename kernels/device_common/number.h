/// Elements as floats, and packs of elements, in code for host and device.
///
/// Rounding is core/dtype.h's, to the bit; only the bits of a NaN may differ on a device.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/dtype.h"
#include "core/error.h"
#include "core/host_device.h"

namespace sherd::kernels::device_common {

SHERD_HOST_DEVICE inline std::uint32_t bits_of(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(x);
#else
  return std::bit_cast<std::uint32_t>(x);
#endif
}
SHERD_HOST_DEVICE inline float float_of(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

SHERD_HOST_DEVICE inline float widen(float x) {
  return x;
}
SHERD_HOST_DEVICE inline float widen(BFloat16 x) {
  return float_of(static_cast<std::uint32_t>(x.bits) << 16);
}
SHERD_HOST_DEVICE inline float widen(Float16 x) {
#ifdef __CUDA_ARCH__
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
#else
  return static_cast<float>(x);
#endif
}

template <class T>
SHERD_HOST_DEVICE T narrow(float x);
template <>
SHERD_HOST_DEVICE inline float narrow<float>(float x) {
  return x;
}
template <>
SHERD_HOST_DEVICE inline BFloat16 narrow<BFloat16>(float x) {
  const std::uint32_t wide = bits_of(x);
  const std::uint32_t rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;
  const bool nan = (wide & 0x7fffffffu) > 0x7f800000u;
  BFloat16 out;
  out.bits = static_cast<std::uint16_t>(nan ? ((wide >> 16) | 0x40u) : rounded);
  return out;
}
template <>
SHERD_HOST_DEVICE inline Float16 narrow<Float16>(float x) {
#ifdef __CUDA_ARCH__
  Float16 out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
  return out;
#else
  return Float16(x);
#endif
}

#ifndef __CUDA_ARCH__
/// On a device the hardware detects misaligned accesses.
inline void check_pack(const void* at, std::size_t bytes) {
  SHERD_CHECK(reinterpret_cast<std::uintptr_t>(at) % bytes == 0,
              "a pack of {} bytes isn't at a multiple", bytes);
}
#endif

/// A pack of N consecutive elements. With N > 1 it is aligned to 16 bytes, and is accessed 16 bytes
/// at a time, or 8 if it has only 8. A pack of one element may be anywhere.
template <int N, class T>
SHERD_HOST_DEVICE inline void load(const T* from, T (&to)[N]) {
  static_assert(N == 1 || N * sizeof(T) % 16 == 0);
#ifdef __CUDA_ARCH__
  if constexpr (N > 1) {
    constexpr int kWords = N * sizeof(T) / 16;
    uint4 words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const uint4*>(from)[i];
    memcpy(to, words, sizeof words);
  } else {
    to[0] = from[0];
  }
#else
  if constexpr (N > 1) check_pack(from, 16);
  for (int i = 0; i < N; ++i) to[i] = from[i];
#endif
}
template <int N, class T>
SHERD_HOST_DEVICE inline void store(T* to, const T (&from)[N]) {
  static_assert(N == 1 || N * sizeof(T) == 8 || N * sizeof(T) % 16 == 0);
#ifdef __CUDA_ARCH__
  if constexpr (N > 1) {
    using Word = std::conditional_t<N * sizeof(T) == 8, uint2, uint4>;
    constexpr int kWords = N * sizeof(T) / sizeof(Word);
    Word words[kWords];
    memcpy(words, from, sizeof words);
#pragma unroll
    for (int i = 0; i < kWords; ++i) reinterpret_cast<Word*>(to)[i] = words[i];
  } else {
    to[0] = from[0];
  }
#else
  if constexpr (N > 1) check_pack(to, N * sizeof(T) == 8 ? 8 : 16);
  for (int i = 0; i < N; ++i) to[i] = from[i];
#endif
}

/// The same as floats.
template <int N, class T>
SHERD_HOST_DEVICE inline void load_wide(const T* from, float (&to)[N]) {
  T narrow_pack[N];
  load<N>(from, narrow_pack);
  for (int i = 0; i < N; ++i) to[i] = widen(narrow_pack[i]);
}
/// Two at once, rounded by the hardware. Bit-identical except for the bits of a NaN.
template <class T>
SHERD_HOST_DEVICE inline void narrow_two(const float* from, T* to) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
    std::uint32_t both;  // the first in the lower half
    if constexpr (std::is_same_v<T, BFloat16>) {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(from[1]), "f"(from[0]));
    } else {
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(from[1]), "f"(from[0]));
    }
    to[0].bits = static_cast<std::uint16_t>(both);
    to[1].bits = static_cast<std::uint16_t>(both >> 16);
    return;
  }
#endif
  to[0] = narrow<T>(from[0]);
  to[1] = narrow<T>(from[1]);
}
template <int N, class T>
SHERD_HOST_DEVICE inline void store_narrow(T* to, const float (&from)[N]) {
  T narrow_pack[N];
  for (int i = 0; i + 1 < N; i += 2) narrow_two(from + i, narrow_pack + i);
  if constexpr (N % 2 == 1) narrow_pack[N - 1] = narrow<T>(from[N - 1]);
  store<N>(to, narrow_pack);
}

/// Number of elements in a pack of these types: 16 bytes of the narrowest.
template <class First, class... Rest>
constexpr int pack_of() {
  std::size_t narrowest = sizeof(First);
  ((narrowest = sizeof(Rest) < narrowest ? sizeof(Rest) : narrowest), ...);
  return static_cast<int>(16 / narrowest);
}

/// Whether packs may start at each of these addresses.
template <class... Pointers>
bool allow_packs(const Pointers*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace sherd::kernels::device_common
