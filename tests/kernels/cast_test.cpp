#include "kernels/pointwise.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tests/kernels/parts.h"
#include "tests/support/oracles/oracle_dtype.h"
#include "tests/support/oracles/oracle_pointwise.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();

class Cast : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, Cast, testing::Values(DType::kBF16, DType::kF16), test::type_name);

TEST_P(Cast, OfAllPatternsToF32AndBackIsExactAndKeepsNaN) {
  constexpr std::int64_t kPatterns = 65536;
  OwnedTensor narrow(GetParam(), kPatterns);
  auto* bits = static_cast<std::uint16_t*>(narrow.tensor().data);
  for (std::int64_t i = 0; i < kPatterns; ++i) bits[i] = static_cast<std::uint16_t>(i);
  const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
    Outputs outputs{{DType::kF32, kPatterns}, {GetParam(), kPatterns}};
    cast(stream, narrow, outputs[0]);
    cast(stream, outputs[0], outputs[1]);
    return outputs;
  });
  const float* wide = out[0].tensor().as<float>();
  const auto* back = static_cast<const std::uint16_t*>(out[1].tensor().data);
  for (std::int64_t i = 0; i < kPatterns; ++i) {
    const double value = oracle::value_of_bits(GetParam(), bits[i]);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(wide[i])) << "pattern " << i;
      ASSERT_TRUE(std::isnan(oracle::value_of_bits(GetParam(), back[i]))) << "pattern " << i;
    } else {
      ASSERT_EQ(static_cast<double>(wide[i]), value) << "pattern " << i;
      ASSERT_EQ(back[i], bits[i]);
    }
  }
}

TEST_P(Cast, FromF32RoundsToNearestEvenEverywhere) {
  // Every border between two neighbours, and the floats next to it; then random patterns.
  std::vector<float> inputs{kFloatInfinity, -kFloatInfinity, 0.0f, -0.0f,
                            std::numeric_limits<float>::max()};
  for (std::uint16_t bits = 0;; ++bits) {
    const double low = oracle::value_of_bits(GetParam(), bits);
    const double high = oracle::value_of_bits(GetParam(), static_cast<std::uint16_t>(bits + 1));
    if (std::isinf(high)) {
      const double below = oracle::value_of_bits(GetParam(), static_cast<std::uint16_t>(bits - 1));
      const auto border = static_cast<float>(low + 0.5 * (low - below));
      inputs.insert(inputs.end(), {border, std::nextafter(border, 0.0f), -border});
      break;
    }
    const auto border = static_cast<float>(0.5 * (low + high));
    inputs.insert(inputs.end(), {border, -border, std::nextafter(border, 0.0f),
                                 std::nextafter(border, kFloatInfinity)});
  }
  for (const std::int32_t word : test::random_tokens(20000, 0x7f800000, 3)) {
    inputs.push_back(std::bit_cast<float>(word));
  }
  const auto numel = static_cast<std::int64_t>(inputs.size());
  OwnedTensor narrow(GetParam(), numel);
  cast(*test::compute_stream(2), ConstTensor(inputs.data(), DType::kF32, numel), narrow);
  const auto* bits = static_cast<const std::uint16_t*>(narrow.tensor().data);
  for (std::int64_t i = 0; i < numel; ++i) {
    const float input = inputs[static_cast<std::size_t>(i)];
    ASSERT_EQ(bits[i], oracle::nearest_bits(GetParam(), static_cast<double>(input)))
        << "of " << testing::PrintToString(input);
  }
}

TEST_P(Cast, FromF32HasTheSameBitsWhereverAnElementLies) {
  const OwnedTensor wide(DType::kF32, test::random_values(557, 1));
  const auto stream = test::compute_stream();
  const auto narrowed = [&](std::int64_t first, std::int64_t n) {
    OwnedTensor out(GetParam(), n);
    cast(*stream, ConstTensor(wide).part(first, n), out);
    return out;
  };
  expect_parts_equal(narrowed(0, 557), narrowed);
}

TEST(CastCopy, OfTheSameTypeIsACopy) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const OwnedTensor x(dtype, test::random_values(20011, 1));
    OwnedTensor y(dtype, 20011), same = x;
    const auto stream = test::compute_stream(2);
    cast(*stream, x, y);
    cast(*stream, same, same);
    EXPECT_TRUE(test::same_bits(y, x));
    EXPECT_TRUE(test::same_bits(same, x)) << "onto itself";
  }
}

}  // namespace
}  // namespace sherd::kernels
