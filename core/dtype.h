/// The element types of tensors, and the two 16-bit ones as C++ types.
///
/// Conversions to 16 bits round to nearest, ties to even. NaN stays a (quiet) NaN, values beyond
/// the largest finite one become infinity, subnormals are kept. IEEE 754-2019 §4.3.1, for both
/// formats.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace sherd {

enum class DType : std::uint8_t { kF32, kBF16, kF16, kF64, kI32, kU8 };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kU8:
      return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "f64";
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kI32:
      return "i32";
    case DType::kU8:
      return "u8";
  }
  return "?";
}

/// bfloat16: 8 exponent bits, 7 mantissa bits.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;
    const bool nan = (wide & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<std::uint16_t>(nan ? ((wide >> 16) | 0x40u) : rounded);
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

/// IEEE binary16: 5 exponent bits, 10 mantissa bits, largest finite 65504.
struct Float16 {
  std::uint16_t bits = 0;

  Float16() = default;
  explicit Float16(float value);
  explicit operator float() const;
};

namespace detail {
std::uint16_t f16_bits_portable(float value);
float f16_value_portable(std::uint16_t bits);
}  // namespace detail

#ifdef __F16C__
inline Float16::Float16(float value)
    : bits(static_cast<std::uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT))) {}
inline Float16::operator float() const {
  return _cvtsh_ss(bits);
}
#else
inline Float16::Float16(float value) : bits(detail::f16_bits_portable(value)) {}
inline Float16::operator float() const {
  return detail::f16_value_portable(bits);
}
#endif

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::kU8;
};

template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

}  // namespace sherd
