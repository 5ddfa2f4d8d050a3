#include "kernels/pointwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/oracles/oracle_pointwise.h"
#include "tests/support/values/exact_sums.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

constexpr std::int64_t kSizes[] = {1, 7, 8, 63, 64, 131, 4096, 4099, 50021};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class Reduction : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, Reduction, test::compute_types(), test::type_name);

double sum_of_squares_of(Stream& stream, ConstTensor x) {
  OwnedTensor out = test::exact_sums(1);
  OwnedTensor workspace(DType::kF64, sum_of_squares_workspace_bytes(x.numel) / 8);
  sum_of_squares(stream, x, out, workspace);
  return test::values_of_sums(out)[0];
}

TEST_P(Reduction, SumOfSquaresMatchesTheOracleOnAnyNumberOfThreads) {
  for (const std::int64_t numel : kSizes) {
    const OwnedTensor x(GetParam(), test::random_values(numel, 1));
    const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
      return Outputs{{DType::kF64, Values{sum_of_squares_of(stream, x)}}};
    });
    // The oracle adds in f64.
    EXPECT_TRUE(test::close(out[0], {oracle::sum_of_squares(x.values())}, {1e-12, 0.0, 0.0}));
  }
}

TEST(SumOfSquares, IsNotFiniteIfAnElementIsNot) {
  for (const std::int64_t at : {0, 4095, 4096, 9000}) {
    for (const float bad : {kInfinity, -kInfinity, kNaN}) {
      OwnedTensor x(DType::kF32, test::random_values(9001, 1));
      x.tensor().as<float>()[at] = bad;
      EXPECT_FALSE(std::isfinite(sum_of_squares_of(*test::compute_stream(2), x)));
    }
  }
}

TEST(SumOfSquares, OfLargeNumbersDoesNotOverflow) {
  const OwnedTensor x(DType::kF32, Values{1e30, 1e30, 1e-30});
  EXPECT_NEAR(sum_of_squares_of(*test::compute_stream(), x) / 2e60, 1.0, 1e-6);
}

TEST_P(Reduction, FindNonFiniteNamesTheFirst) {
  for (const std::int64_t numel : {std::int64_t{1}, std::int64_t{131}, std::int64_t{50021}}) {
    for (const int num_threads : {1, 2, 4}) {
      const auto stream = test::compute_stream(num_threads);
      const Values finite = test::random_values(numel, 1);
      EXPECT_EQ(find_non_finite(*stream, OwnedTensor(GetParam(), finite)), -1);
      for (const std::int64_t at : {std::int64_t{0}, numel / 2, numel - 1}) {
        for (const float bad : {kInfinity, -kInfinity, kNaN}) {
          Values values = finite;
          values[static_cast<std::size_t>(at)] = static_cast<double>(bad);
          values.back() = at == numel - 1 ? values.back() : static_cast<double>(kNaN);
          EXPECT_EQ(find_non_finite(*stream, OwnedTensor(GetParam(), values)), at);
        }
      }
    }
  }
}

// The second task meets a NaN at once, the first only at its end: first in place, not first in
// time.
TEST(FindNonFinite, NamesTheFirstThoughALaterOneIsFoundSooner) {
  OwnedTensor x(DType::kF32, Values(65536, 1.0));
  for (const std::int64_t at : {16300, 16384, 32768, 49152}) x.tensor().as<float>()[at] = kNaN;
  for (const int num_threads : {2, 4}) {
    const auto stream = test::compute_stream(num_threads);
    for (int i = 0; i < 100; ++i) ASSERT_EQ(find_non_finite(*stream, x), 16300);
  }
}

TEST(FindNonFinite, TakesTheLargestFiniteForFinite) {
  const auto stream = test::compute_stream();
  const double largest = static_cast<double>(std::numeric_limits<float>::max());
  EXPECT_EQ(find_non_finite(*stream, OwnedTensor(DType::kF32, Values(9, largest))), -1);
  EXPECT_EQ(find_non_finite(*stream, OwnedTensor(DType::kF16, Values(9, -65504.0))), -1);
  EXPECT_EQ(find_non_finite(*stream, OwnedTensor(DType::kF16, Values(9, 65536.0))), 0);
}

}  // namespace
}  // namespace sherd::kernels
