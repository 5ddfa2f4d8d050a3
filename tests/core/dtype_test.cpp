#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/oracles/oracle_dtype.h"
#include "tests/support/values/tensors.h"

namespace sherd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct F16Portable {
  std::uint16_t bits = 0;
  F16Portable() = default;
  explicit F16Portable(float value) : bits(detail::f16_bits_portable(value)) {}
  explicit operator float() const { return detail::f16_value_portable(bits); }
};

template <class T>
inline constexpr DType format = dtype_of<T>;
template <>
inline constexpr DType format<F16Portable> = DType::kF16;

template <class T>
class SixteenBits : public testing::Test {};
using Formats = testing::Types<BFloat16, Float16, F16Portable>;
TYPED_TEST_SUITE(SixteenBits, Formats);

template <class T>
float value(std::uint16_t bits) {
  T narrow;
  narrow.bits = bits;
  return static_cast<float>(narrow);
}

TYPED_TEST(SixteenBits, EveryPatternHasTheValueOfItsDefinition) {
  for (int pattern = 0; pattern < 65536; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const double expected = oracle::value_of_bits(format<TypeParam>, bits);
    const float actual = value<TypeParam>(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual)) << "pattern " << pattern;
    } else {
      ASSERT_EQ(static_cast<double>(actual), expected) << "pattern " << pattern;
      ASSERT_EQ(std::signbit(actual), std::signbit(expected)) << "pattern " << pattern;
    }
  }
}

TYPED_TEST(SixteenBits, EveryPatternSurvivesTheRoundTrip) {
  for (int pattern = 0; pattern < 65536; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const std::uint16_t back = TypeParam(value<TypeParam>(bits)).bits;
    if (std::isnan(oracle::value_of_bits(format<TypeParam>, bits))) {
      ASSERT_TRUE(std::isnan(oracle::value_of_bits(format<TypeParam>, back)));
    } else {
      ASSERT_EQ(back, bits);
    }
  }
}

TYPED_TEST(SixteenBits, NaNBecomesAQuietNaNWhateverItsPayload) {
  const std::uint16_t quiet = format<TypeParam> == DType::kBF16 ? 0x7fc0 : 0x7e00;
  for (const std::uint32_t payload : {0x1u, 0x1fffu, 0xffffu, 0x200000u, 0x400000u, 0x7fffffu}) {
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const auto nan = std::bit_cast<float>(sign | 0x7f800000u | payload);
      ASSERT_EQ(TypeParam(nan).bits & quiet, quiet) << "payload " << payload;
    }
  }
}

// Between every two neighbours: the middle goes to the even one, floats next to it to their side.
TYPED_TEST(SixteenBits, RoundsToNearestEvenBetweenAllNeighbours) {
  constexpr DType kFormat = format<TypeParam>;
  const auto expect_nearest = [](float input) {
    ASSERT_EQ(TypeParam(input).bits, oracle::nearest_bits(kFormat, static_cast<double>(input)))
        << "of " << testing::PrintToString(input);
  };
  for (std::uint16_t bits = 0;; ++bits) {
    const double low = oracle::value_of_bits(kFormat, bits);
    double high = oracle::value_of_bits(kFormat, static_cast<std::uint16_t>(bits + 1));
    const bool last = std::isinf(high);
    // Beyond the largest finite the border to infinity lies half a spacing up.
    if (last) {
      high = 2.0 * low - oracle::value_of_bits(kFormat, static_cast<std::uint16_t>(bits - 1));
    }
    const auto middle = static_cast<float>(0.5 * (low + high));
    ASSERT_EQ(static_cast<double>(middle), 0.5 * (low + high));
    for (const float sign : {1.0f, -1.0f}) {
      expect_nearest(sign * middle);
      expect_nearest(sign * std::nextafter(middle, 0.0f));
      expect_nearest(sign * std::nextafter(middle, kInfinity));
    }
    if (last) break;
  }
}

TYPED_TEST(SixteenBits, RoundsRandomPatternsToTheNearest) {
  for (const std::int32_t word : test::random_tokens(50000, 0x7f800000, 7)) {
    const auto input = std::bit_cast<float>(word);
    ASSERT_EQ(TypeParam(input).bits,
              oracle::nearest_bits(format<TypeParam>, static_cast<double>(input)))
        << "of " << testing::PrintToString(input);
  }
}

TYPED_TEST(SixteenBits, ValuesBeyondTheLargestFiniteBecomeInfinity) {
  for (const float input : {std::numeric_limits<float>::max(), kInfinity}) {
    EXPECT_EQ(static_cast<float>(TypeParam(input)), kInfinity);
    EXPECT_EQ(static_cast<float>(TypeParam(-input)), -kInfinity);
  }
}

TEST(DTypeNames, SizesAndNamesBelongTogether) {
  EXPECT_EQ(size_of(DType::kF64), sizeof(double));
  EXPECT_EQ(size_of(DType::kF32), sizeof(float));
  EXPECT_EQ(size_of(DType::kBF16), sizeof(BFloat16));
  EXPECT_EQ(size_of(DType::kF16), sizeof(Float16));
  EXPECT_EQ(size_of(DType::kI32), sizeof(std::int32_t));
  EXPECT_EQ(size_of(DType::kU8), sizeof(std::uint8_t));
  EXPECT_EQ(name_of(DType::kBF16), "bf16");
  EXPECT_EQ(name_of(DType::kF32), "f32");
}

}  // namespace
}  // namespace sherd
