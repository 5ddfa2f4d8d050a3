// Stochastic rounding of bf16 moments: to one of the two neighbours, right on average, and no
// invention where there is nothing to round.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/update.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels {
namespace {

using test::OwnedTensor;
using test::Values;

// SGD's first momentum is the gradient itself: what is stored is its rounding.
OwnedTensor rounded_at_random(const OwnedTensor& values, std::uint32_t step = 1) {
  OwnedTensor p(DType::kF32, Values(static_cast<std::size_t>(values.numel()), 0.0));
  OwnedTensor m(DType::kBF16, Values(static_cast<std::size_t>(values.numel()), 0.0));
  const UpdateSegment segment{0, values.numel(), 0.0f, 3, 17};
  SgdUpdate args;
  args.common.parameter = p;
  args.common.gradient = values;
  args.common.segments = {&segment, 1};
  args.common.rounding = {true, {11, step, 0}};
  args.momentum_buffer = m;
  args.momentum = 0.5f;
  sgd_update(*test::compute_stream(2), args);
  return m;
}

float bf16_below(float value) {  // towards zero
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0xffff0000u);
}
float bf16_above(float value) {  // away from zero; the next of `bf16_below`
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) & 0xffff0000u) + 0x10000u);
}

TEST(MomentRounding, GoesToOneOfTheTwoNeighboursAndIsRightOnAverage) {
  constexpr std::int64_t kCount = 200000;
  for (const double scale : {1.0, 1e-30, 1e30}) {
    const OwnedTensor values(DType::kF32, test::random_values(kCount, 5, scale));
    const Values exact = values.values(), stored = rounded_at_random(values).values();
    double bias = 0.0, variance = 0.0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const auto value = static_cast<float>(exact[i]);
      const double below = bf16_below(value), above = bf16_above(value);
      ASSERT_TRUE(stored[i] == below || (stored[i] == above && exact[i] != below))
          << exact[i] << " became " << stored[i];
      // In units of the gap, a Bernoulli variable whose mean is where the value lies in it.
      const double share = (exact[i] - below) / (above - below);
      bias += (stored[i] - exact[i]) / (above - below);
      variance += share * (1.0 - share);
    }
    EXPECT_LT(std::abs(bias), 5.0 * std::sqrt(variance)) << "scale " << scale;
    EXPECT_GT(variance, 0.1 * kCount);
  }
}

TEST(MomentRounding, KeepsWhatBFloat16HoldsExactly) {
  const Values exact{0.0, 1.0, -1.5, 0x1p-126, -0x1.fep127, 3.0, -0x1p-133, 96.5};
  const OwnedTensor values(DType::kF32, exact);
  for (std::uint32_t step = 1; step <= 50; ++step) {
    EXPECT_EQ(rounded_at_random(values, step).values(), exact);
  }
}

// Random bits added to the low half of a NaN could carry into its sign, those of infinity make a
// NaN.
TEST(MomentRounding, KeepsInfinitiesAndNans) {
  constexpr std::uint32_t kBits[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc00000u,
                                     0x7fffffffu, 0xffffffffu, 0x7f800001u, 0xff80ffffu};
  OwnedTensor values(DType::kF32, Values(std::size(kBits), 0.0));
  std::memcpy(values.tensor().data, kBits, sizeof(kBits));
  for (std::uint32_t step = 1; step <= 50; ++step) {
    const Values stored = rounded_at_random(values, step).values();
    EXPECT_EQ(stored[0], INFINITY);
    EXPECT_EQ(stored[1], -INFINITY);
    for (std::size_t i = 2; i < stored.size(); ++i) {
      EXPECT_TRUE(std::isnan(stored[i])) << std::hex << kBits[i] << " became " << stored[i];
    }
  }
}

}  // namespace
}  // namespace sherd::kernels
