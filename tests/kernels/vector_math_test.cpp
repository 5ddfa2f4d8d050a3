#include "kernels/cpu/vector_math.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace sherd::kernels::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Distance from the true value in units of the last place of the float nearest to it.
double error_in_ulp(float value, double truth) {
  const float nearest = std::fabs(static_cast<float>(truth));
  return std::fabs(value - truth) / (std::nextafter(nearest, kInfinity) - nearest);
}

/// Floats spread evenly over all bit patterns, of both signs, that lie in [low, high].
std::vector<float> floats_between(float low, float high) {
  std::vector<float> values;
  for (std::uint32_t bits = 0; bits < 0x7f800000u; bits += 997) {
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const auto x = std::bit_cast<float>(bits | sign);
      if (x >= low && x <= high) values.push_back(x);
    }
  }
  return values;
}

template <class Function, class Truth>
void expect_error_at_most(double limit, float low, float high, Function function, Truth truth) {
  double worst = 0.0;
  float worst_at = 0.0f;
  for (const float x : floats_between(low, high)) {
    const double error = error_in_ulp(function(x), truth(static_cast<double>(x)));
    if (!(error <= worst)) worst = error, worst_at = x;
  }
  EXPECT_LE(worst, limit) << "at " << worst_at;
}

/// Compares a vectorised loop over 1003 elements, whose last are its tail, with one element at a
/// time, from several starting addresses.
template <class Function>
void expect_same_bits_in_vector_and_scalar(float low, float high, Function function) {
  constexpr std::size_t kCount = 1003;
  const std::vector<float> all = floats_between(low, high);
  std::vector<float> x(kCount + 8), y(kCount + 8);
  for (std::size_t first = 0; first + kCount <= all.size(); first += 10 * kCount) {
    const std::size_t shift = first / kCount % 8;
    std::copy_n(all.data() + first, kCount, x.data() + shift);
    const float* in = x.data() + shift;
    float* out = y.data() + shift;
#pragma omp simd
    for (std::size_t i = 0; i < kCount; ++i) out[i] = function(in[i]);
    for (std::size_t i = 0; i < kCount; ++i) {
      volatile float alone = in[i];
      const float expected = function(alone);
      ASSERT_EQ(std::memcmp(&expected, out + i, sizeof expected), 0) << "at " << in[i];
    }
  }
}

TEST(VectorMath, ExpIsWithin1Point1UlpWhereItDoesNotUnderflow) {
  expect_error_at_most(
      1.1, -86.9f, 88.72f, [](float x) { return fast_exp(x); },
      [](double x) { return std::exp(x); });
}

TEST(VectorMath, LogIsWithin0Point9UlpOverAllPositiveFloats) {
  expect_error_at_most(
      0.9, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::max(),
      [](float x) { return fast_log(x); }, [](double x) { return std::log(x); });
}

TEST(VectorMath, TanhIsWithin1Point4UlpOverAllFloats) {
  expect_error_at_most(
      1.4, -std::numeric_limits<float>::max(), std::numeric_limits<float>::max(),
      [](float x) { return fast_tanh(x); }, [](double x) { return std::tanh(x); });
}

TEST(VectorMath, SigmoidIsWithin2Point4UlpWhereItDoesNotUnderflow) {
  expect_error_at_most(
      2.4, -87.0f, std::numeric_limits<float>::max(), [](float x) { return fast_sigmoid(x); },
      [](double x) { return 1.0 / (1.0 + std::exp(-x)); });
}

TEST(VectorMath, ExpTakesTheEndsOfTheNumberLineToTheirLimits) {
  EXPECT_EQ(fast_exp(-kInfinity), 0.0f);
  EXPECT_EQ(fast_exp(-std::numeric_limits<float>::max()), 0.0f);
  EXPECT_EQ(fast_exp(-104.0f), 0.0f);
  EXPECT_FALSE(std::signbit(fast_exp(-1000.0f)));
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  EXPECT_EQ(fast_exp(-0.0f), 1.0f);
  EXPECT_LT(fast_exp(88.7228f), kInfinity);
  EXPECT_EQ(fast_exp(88.73f), kInfinity);
  EXPECT_EQ(fast_exp(std::numeric_limits<float>::max()), kInfinity);
  EXPECT_EQ(fast_exp(kInfinity), kInfinity);
}

TEST(VectorMath, ExpNeverErrsByMoreThanItsSmallestResultWhereItUnderflows) {
  for (const float x : floats_between(-1000.0f, -86.0f)) {
    ASSERT_NEAR(fast_exp(x), std::exp(static_cast<double>(x)), 1.7e-38) << "at " << x;
  }
}

TEST(VectorMath, LogOfZeroIsMinusInfinityAndOfNegativesNaN) {
  EXPECT_EQ(fast_log(0.0f), -kInfinity);
  EXPECT_EQ(fast_log(-0.0f), -kInfinity);
  EXPECT_EQ(fast_log(1.0f), 0.0f);
  EXPECT_EQ(fast_log(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(fast_log(-1.0f)));
  EXPECT_TRUE(std::isnan(fast_log(-kInfinity)));
}

TEST(VectorMath, TanhAndSigmoidReachTheirLimitsExactly) {
  EXPECT_EQ(fast_tanh(kInfinity), 1.0f);
  EXPECT_EQ(fast_tanh(-kInfinity), -1.0f);
  EXPECT_EQ(fast_tanh(20.0f), 1.0f);
  EXPECT_TRUE(std::signbit(fast_tanh(-0.0f)));
  EXPECT_EQ(fast_sigmoid(kInfinity), 1.0f);
  EXPECT_EQ(fast_sigmoid(-kInfinity), 0.0f);
  EXPECT_EQ(fast_sigmoid(-1000.0f), 0.0f);
  EXPECT_EQ(fast_sigmoid(0.0f), 0.5f);
}

TEST(VectorMath, NaNStaysNaNWhateverItsSignAndPayload) {
  for (const std::uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7fffffffu, 0xffc001ffu}) {
    const auto nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(fast_exp(nan)));
    EXPECT_TRUE(std::isnan(fast_log(nan)));
    EXPECT_TRUE(std::isnan(fast_tanh(nan)));
    EXPECT_TRUE(std::isnan(fast_sigmoid(nan)));
  }
  EXPECT_TRUE(std::isnan(fast_exp(kNaN)));
}

TEST(VectorMath, AnElementGetsTheSameBitsInAVectorsBodyInItsTailAndAlone) {
  constexpr float kMax = std::numeric_limits<float>::max();
  expect_same_bits_in_vector_and_scalar(-kMax, kMax, [](float x) { return fast_exp(x); });
  expect_same_bits_in_vector_and_scalar(0.0f, kMax, [](float x) { return fast_log(x); });
  expect_same_bits_in_vector_and_scalar(-kMax, kMax, [](float x) { return fast_tanh(x); });
  expect_same_bits_in_vector_and_scalar(-kMax, kMax, [](float x) { return fast_sigmoid(x); });
}

}  // namespace
}  // namespace sherd::kernels::cpu
