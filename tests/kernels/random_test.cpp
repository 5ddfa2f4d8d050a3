#include "kernels/pointwise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/oracles/oracle_philox.h"
#include "tests/support/oracles/oracle_pointwise.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

constexpr RandomAddress kAddress{0xdecafbadull, 0, 4};

OwnedTensor normal(Stream& stream, std::int64_t first, std::int64_t numel, float mean = 0.0f,
                   float stddev = 1.0f) {
  OwnedTensor out(DType::kF32, numel);
  fill_normal(stream, out, kAddress, first, mean, stddev);
  return out;
}

TEST(FillNormal, HasTheMomentsOfANormal) {
  constexpr std::int64_t kNumel = 200000;
  const OwnedTensor out = normal(*test::compute_stream(2), 0, kNumel, 3.0f, 0.5f);
  const Values x = out.values();
  const oracle::Moments m = oracle::moments_of(x);
  // Five standard deviations of each statistic of a normal sample.
  const double root = std::sqrt(static_cast<double>(kNumel));
  EXPECT_NEAR(m.mean, 3.0, 5.0 * 0.5 / root);
  EXPECT_NEAR(m.variance, 0.25, 5.0 * 0.25 * std::sqrt(2.0) / root);
  EXPECT_NEAR(m.skewness, 0.0, 5.0 * std::sqrt(6.0) / root);
  EXPECT_NEAR(m.kurtosis, 3.0, 5.0 * std::sqrt(24.0) / root);

  // Neighbours share a block and must not share their values; the tails reach where they should.
  double neighbours = 0.0;
  std::int64_t beyond_two = 0;
  for (std::size_t i = 0; i + 1 < x.size(); ++i) {
    neighbours += (x[i] - 3.0) * (x[i + 1] - 3.0) / 0.25 / static_cast<double>(kNumel);
    beyond_two += std::abs(x[i] - 3.0) > 1.0 ? 1 : 0;
  }
  EXPECT_NEAR(neighbours, 0.0, 5.0 / root);
  EXPECT_NEAR(static_cast<double>(beyond_two) / kNumel, 0.0455003, 5.0 * 0.2084 / root);
}

TEST(FillNormal, GivesAnElementItsValueWhateverTheCutAndTheThreads) {
  constexpr std::int64_t kNumel = 40009;
  const Outputs whole = test::on_any_number_of_threads(
      [&](Stream& stream) { return Outputs{normal(stream, 0, kNumel)}; });
  const auto stream = test::compute_stream(2);
  for (const auto& [first, n] :
       {std::pair{0, 1}, {1, 1}, {1, 2}, {2, 5}, {3, 100}, {16383, 3}, {5001, 35008}}) {
    EXPECT_TRUE(test::same_bits(normal(*stream, first, n), ConstTensor(whole[0]).part(first, n)))
        << "from " << first;
  }
}

TEST(FillNormal, EveryPartOfTheAddressMatters) {
  const auto stream = test::compute_stream();
  const Values x = normal(*stream, 0, 8).values();
  for (const RandomAddress& other : {RandomAddress{1, 0, 4}, RandomAddress{0xdecafbadull, 1, 4},
                                     RandomAddress{0xdecafbadull, 0, 5}}) {
    OwnedTensor out(DType::kF32, 8);
    fill_normal(*stream, out, other, 0, 0.0f, 1.0f);
    for (std::size_t i = 0; i < 8; ++i) EXPECT_NE(out.values()[i], x[i]);
  }
}

TEST(UniformNumbers, FollowTheirElementsAddressAndFillTheInterval) {
  const RandomAddress address{77, 0xffffffffu, 5};
  constexpr std::int64_t kFirst = 12345, kNumel = 20001;
  constexpr float kBound = 0.25f;
  const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
    OwnedTensor y(DType::kF32, kNumel);
    fill_uniform(stream, y, address, kFirst, kBound);
    return Outputs{y};
  });
  const Values values = out[0].values();
  double sum = 0.0, squares = 0.0;
  for (std::int64_t i = 0; i < kNumel; ++i) {
    const double value = values[static_cast<std::size_t>(i)];
    const double word = oracle::random_word(address, static_cast<std::uint64_t>(kFirst + i));
    EXPECT_EQ(value, static_cast<float>(kBound * (2.0 * ((word + 0.5) / 4294967296.0) - 1.0)));
    EXPECT_LE(std::abs(value), kBound);
    sum += value;
    squares += value * value;
  }
  // Mean 0 and variance bound^2 / 3, within five standard errors.
  const double variance = kBound * kBound / 3.0;
  EXPECT_LT(std::abs(sum / kNumel), 5.0 * std::sqrt(variance / kNumel));
  EXPECT_NEAR(squares / kNumel, variance, 5.0 * variance * std::sqrt(0.8 / kNumel));
}

}  // namespace
}  // namespace sherd::kernels
