#include "kernels/adapter.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/parts.h"
#include "tests/support/oracle_dtype.h"
#include "tests/support/oracle_philox.h"
#include "tests/support/tensors.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

class AdapterColumns : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, AdapterColumns, test::compute_types(), test::type_name);

constexpr Columns kShapes[] = {{1, 1, 0, 1}, {5, 700, 3, 300}, {9, 24, 16, 8}, {70, 33, 0, 33}};

TEST_P(AdapterColumns, AreAddedToWithOneRoundingAndTheOthersStay) {
  for (const Columns& columns : kShapes) {
    const OwnedTensor z(GetParam(), test::random_values(columns.rows * columns.count, 1));
    const OwnedTensor before(GetParam(), test::random_values(columns.rows * columns.width, 2));
    const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
      OwnedTensor y = before;
      add_to_columns(stream, columns, z, 1.75f, y);
      return Outputs{y};
    });
    Values expected = before.values();
    const Values added = z.values();
    for (std::int64_t t = 0; t < columns.rows; ++t) {
      for (std::int64_t c = 0; c < columns.count; ++c) {
        double& value = expected[static_cast<std::size_t>(t * columns.width + columns.first + c)];
        // Exact in f64: at most 24 + 8 bits, and magnitudes alike.
        value = static_cast<float>(value +
                                   1.75 * added[static_cast<std::size_t>(t * columns.count + c)]);
      }
    }
    EXPECT_TRUE(test::same_bits(out[0], OwnedTensor(GetParam(), expected)));
  }
}

TEST_P(AdapterColumns, AreTakenScaled) {
  for (const Columns& columns : kShapes) {
    const OwnedTensor y(GetParam(), test::random_values(columns.rows * columns.width, 3));
    const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
      OwnedTensor z(GetParam(), columns.rows * columns.count);
      take_columns(stream, columns, y, 0.3f, z);
      return Outputs{z};
    });
    Values expected;
    const Values whole = y.values();
    for (std::int64_t t = 0; t < columns.rows; ++t) {
      for (std::int64_t c = 0; c < columns.count; ++c) {
        const auto at = static_cast<std::size_t>(t * columns.width + columns.first + c);
        expected.push_back(
            static_cast<double>(static_cast<float>(static_cast<double>(0.3f) * whole[at])));
      }
    }
    EXPECT_TRUE(test::same_bits(out[0], OwnedTensor(GetParam(), expected)));
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
