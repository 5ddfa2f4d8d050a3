#include "kernels/rotary.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/oracles/oracle_rotary.h"
#include "tests/support/values/tensors.h"

// B sequences, S positions, H query heads, G key/value heads, K head width.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

constexpr double kTheta = 10000.0;

struct Case {
  std::int64_t B, S, H, G, K;

  std::int64_t packed_width() const { return (H + 2 * G) * K; }
  std::int64_t numel() const { return B * S * packed_width(); }
  Rotary rotary(ConstTensor table, Tensor qkv, bool inverse) const {
    return {B, S, H, G, K, table, qkv, inverse};
  }
};

const Case kCases[] = {{1, 1, 1, 1, 2},    {1, 7, 1, 1, 6},  {2, 13, 4, 4, 10}, {2, 65, 4, 2, 8},
                       {1, 130, 6, 2, 24}, {1, 9, 2, 1, 64}, {1, 5, 1, 1, 1030}};

OwnedTensor table_of(Stream& stream, const Case& c) {
  OwnedTensor table(DType::kF32, c.S * c.K);
  rotary_table(stream, table, c.S, c.K, {.theta = kTheta});
  return table;
}

TEST(RotaryTable, IsTheDoubleTableRoundedOnce) {
  for (const auto& [positions, head_width] : {std::pair{1, 2}, {7, 6}, {150, 64}, {1024, 10}}) {
    const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
      OwnedTensor table(DType::kF32, positions * head_width);
      rotary_table(stream, table, positions, head_width, {.theta = kTheta});
      return Outputs{table};
    });
    // Half an ulp of f32; 1e-12 is the double arithmetic of an angle of about 1000.
    EXPECT_TRUE(test::close(out[0], oracle::rotary_table(positions, head_width, kTheta),
                            {0x1p-24, 0.0, 1e-12}));
  }
}

class RotaryTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, RotaryTest, test::compute_types(), test::type_name);

TEST_P(RotaryTest, BothDirectionsMatchTheOracleOnAnyNumberOfThreads) {
  for (const Case& c : kCases) {
    const OwnedTensor x(GetParam(), test::random_values(c.numel(), 1));
    const OwnedTensor table = table_of(*test::compute_stream(), c);
    for (const bool inverse : {false, true}) {
      const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
        OwnedTensor qkv = x;
        rotary(stream, c.rotary(table, qkv, inverse));
        return Outputs{qkv};
      });
      const Values expected = oracle::rotary(c.rotary({}, {}, inverse), table.values(), x.values());
      EXPECT_TRUE(test::close(out[0], expected, test::rounded_once(GetParam())))
          << "B " << c.B << " S " << c.S << " H " << c.H << " G " << c.G << " K " << c.K;
    }
  }
}

// The factor of position p is 1 + growth ln(1 + floor((p + 1) / step)): with step 4 it is 1 up to position 2.
TEST_P(RotaryTest, QueriesAloneGrowWithTheirPosition) {
  const Case c{2, 13, 4, 2, 10};
  const auto stream = test::compute_stream();
  OwnedTensor table(DType::kF32, c.S * c.K);
  rotary_table(*stream, table, c.S, c.K, {.query_growth = 0.3, .query_step = 4});
  const OwnedTensor before(GetParam(), test::random_values(c.numel(), 1));
  OwnedTensor forward = before, backward = before;
  Rotary args = c.rotary(table, forward, false);
  args.queries_only = true;
  rotary(*stream, args);
  args = c.rotary(table, backward, true);
  args.queries_only = true;
  rotary(*stream, args);
  stream->synchronize();
  EXPECT_TRUE(test::same_bits(forward, backward));
  test::Values expected = before.values();
  for (std::int64_t t = 0; t < c.B * c.S; ++t) {
    const double steps = std::floor(static_cast<double>(t % c.S + 1) / 4.0);
    for (std::int64_t i = 0; i < c.H * c.K; ++i) {
      expected[static_cast<std::size_t>(t * c.packed_width() + i)] *=
          1.0 + 0.3 * std::log(1.0 + steps);
    }
  }
  EXPECT_TRUE(test::close(forward, expected, test::rounded_once(GetParam())));
  const std::int64_t others = c.packed_width() - c.H * c.K;
  for (std::int64_t t = 0; t < c.B * c.S; ++t) {
    const std::int64_t at = t * c.packed_width() + c.H * c.K;
    ASSERT_TRUE(test::same_bits(ConstTensor(forward).part(at, others),
                                ConstTensor(before).part(at, others)));
  }
}

TEST_P(RotaryTest, LeavesTheValueHeadsAlone) {
  for (const Case& c : kCases) {
    const auto stream = test::compute_stream();
    const OwnedTensor before(GetParam(), test::random_values(c.numel(), 1));
    OwnedTensor qkv = before;
    rotary(*stream, c.rotary(table_of(*stream, c), qkv, false));
    for (std::int64_t t = 0; t < c.B * c.S; ++t) {
      const std::int64_t at = t * c.packed_width() + (c.H + c.G) * c.K;
      ASSERT_TRUE(test::same_bits(ConstTensor(qkv).part(at, c.G * c.K),
                                  ConstTensor(before).part(at, c.G * c.K)));
    }
  }
}

TEST_P(RotaryTest, ASequenceHasTheSameBitsAloneAndAmongOthers) {
  const Case c{3, 11, 3, 1, 10};
  const auto stream = test::compute_stream();
  const OwnedTensor table = table_of(*stream, c), x(GetParam(), test::random_values(c.numel(), 1));
  OwnedTensor together = x, alone = x;
  rotary(*stream, c.rotary(table, together, false));
  const std::int64_t n = c.S * c.packed_width();
  for (std::int64_t b = 0; b < c.B; ++b) {
    rotary(*stream, Case{1, c.S, c.H, c.G, c.K}.rotary(table, Tensor(alone).part(b * n, n), false));
  }
  EXPECT_TRUE(test::same_bits(alone, together));
}

// Expected values by hand; whole models of these kinds are compared with transformers in
// tests/engine/model/families_test.cpp.
TEST(RotaryFrequencies, OfPartOfAHeadLeaveTheOtherPairsAlone) {
  const Values f = frequencies_of_pairs({.theta = 100.0, .fraction = 0.5}, 16, 4);
  ASSERT_EQ(f.size(), 8u);
  const double expected[] = {1.0, std::pow(100.0, -0.25), 0.1, std::pow(100.0, -0.75), 0, 0, 0, 0};
  for (std::size_t j = 0; j < 8; ++j) EXPECT_NEAR(f[j], expected[j], 1e-15) << j;
}

TEST(RotaryFrequencies, OfLlama3KeepShortWavesStretchLongOnesAndMixBetween) {
  // Pairs turn 640, 6.4, 2 and 0.064 / (2 pi) ... times; here by choice of C: 1 turn is 2 pi / f.
  const double two_pi = 2.0 * std::acos(-1.0);
  const RotaryFrequencies rope{
      .theta = 10000.0, .scaling = RotaryScaling::kLlama3, .factor = 8.0, .original_length = 100};
  const Values f = frequencies_of_pairs(rope, 4, 4), plain = {1.0, 0.01};
  EXPECT_EQ(f[0], plain[0]);                 // 100 / 2 pi = 16 turns, above 4
  EXPECT_NEAR(f[1], plain[1] / 8.0, 1e-18);  // 0.16 turns, below 1
  RotaryFrequencies between = rope;
  between.original_length = 1571;  // 0.01 turns 2.5 times: halfway between 1 and 4
  const double turns = 1571 * 0.01 / two_pi, t = (turns - 1.0) / 3.0;
  EXPECT_NEAR(frequencies_of_pairs(between, 4, 4)[1], (1.0 - t) * 0.01 / 8.0 + t * 0.01, 1e-17);
  EXPECT_NEAR(t, 0.5, 1e-3);
}

TEST(RotaryFrequencies, OfLongropeAreDividedByTheListOfTheRowsLength) {
  const RotaryFrequencies rope{.theta = 1.0,
                               .scaling = RotaryScaling::kLongrope,
                               .factor = 4.0,
                               .original_length = 10,
                               .short_factors = {1.0, 2.0},
                               .long_factors = {4.0, 8.0}};
  EXPECT_EQ(frequencies_of_pairs(rope, 4, 10), (Values{1.0, 0.5}));
  EXPECT_EQ(frequencies_of_pairs(rope, 4, 11), (Values{0.25, 0.125}));
  EXPECT_NEAR(rotary_factor(rope), std::sqrt(1.0 + std::log(4.0) / std::log(10.0)), 1e-15);
}

TEST(RotaryFrequencies, FactorsAreTheGivenOneOrTheScalingsOwn) {
  RotaryFrequencies rope{.scaling = RotaryScaling::kYarn, .factor = 4.0, .original_length = 64};
  EXPECT_NEAR(rotary_factor(rope), 0.1 * std::log(4.0) + 1.0, 1e-15);
  rope.attention_factor = 1.25;
  EXPECT_EQ(rotary_factor(rope), 1.25);
  rope.scaling = RotaryScaling::kNone;
  EXPECT_EQ(rotary_factor(rope), 1.0);
  rope.scaling = RotaryScaling::kLinear;
  EXPECT_EQ(rotary_factor({.scaling = RotaryScaling::kLinear, .factor = 8.0}), 1.0);
}

TEST(RotaryTable, HoldsTheFactorAndTheFrequencies) {
  const RotaryFrequencies rope{.theta = 100.0,
                               .fraction = 0.5,
                               .scaling = RotaryScaling::kLinear,
                               .factor = 2.0,
                               .attention_factor = 3.0};
  OwnedTensor table(DType::kF32, 5 * 8);
  rotary_table(*test::compute_stream(), table, 5, 8, rope);
  const Values values = table.values();
  EXPECT_NEAR(values[4 * 8], 3.0 * std::cos(2.0), 1e-6);
  EXPECT_NEAR(values[4 * 8 + 4], 3.0 * std::sin(2.0), 1e-6);
  EXPECT_NEAR(values[4 * 8 + 1], 3.0 * std::cos(0.2), 1e-6);
  EXPECT_EQ(values[4 * 8 + 2], 1.0);  // not rotated, so without the factor
  EXPECT_EQ(values[4 * 8 + 6], 0.0);
}

TEST(RotaryOracle, InverseIsTheGradient) {
  const Case c{2, 3, 2, 1, 4};
  const Values table = oracle::rotary_table(c.S, c.K, kTheta);
  const Values x = test::random_values(c.numel(), 1), direction = test::random_values(c.numel(), 2);
  EXPECT_TRUE(oracle::is_gradient(
      oracle::rotary(c.rotary({}, {}, true), table, direction), x, [&](const Values& v) {
        return oracle::dot(direction, oracle::rotary(c.rotary({}, {}, false), table, v));
      }));
}

}  // namespace
}  // namespace sherd::kernels
