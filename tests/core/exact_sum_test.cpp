#include "core/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace sherd {
namespace {

// Floats of every exponent, subnormal ones too, some of them many times.
std::vector<float> numbers(std::size_t count, std::uint32_t seed, int lowest, int highest) {
  std::mt19937 random(seed);
  std::vector<float> values;
  for (std::size_t i = 0; i < count; ++i) {
    const int exponent =
        lowest + static_cast<int>(random() % static_cast<unsigned>(highest - lowest));
    const float mantissa = 1.0f + static_cast<float>(random() % (1u << 23)) * 0x1p-23f;
    values.push_back(std::ldexp(random() % 2 != 0 ? mantissa : -mantissa, exponent));
  }
  return values;
}

double squares(const std::vector<float>& values) {
  ExactSum sum;
  ExactSquares(sum).add(values.data(), static_cast<std::int64_t>(values.size()));
  return sum.value();
}

double plain(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum.value();
}

TEST(ExactSum, OfSquaresThatFitIntoAWideNumberIsTheirRoundedSum) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const auto values = numbers(1 + seed * 7, seed, -10, 12);
    __extension__ unsigned __int128 total = 0;  // in units of 2^-66
    for (const float value : values) {
      const auto whole = static_cast<std::int64_t>(std::ldexp(value, 33));
      total += static_cast<unsigned __int128>(static_cast<std::uint64_t>(std::llabs(whole))) *
               static_cast<std::uint64_t>(std::llabs(whole));
    }
    EXPECT_EQ(squares(values), std::ldexp(static_cast<double>(total), -66)) << "seed " << seed;
  }
}

TEST(ExactSum, HasTheSameBitsInEveryOrderAndCutIntoAnyParts) {
  std::mt19937 random(1);
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    auto values = numbers(3000, seed, -149, 128);
    const double expected = squares(values);
    std::ranges::shuffle(values, random);
    EXPECT_EQ(squares(values), expected);
    ExactSum whole;
    for (std::size_t first = 0; first < values.size();) {
      const std::size_t count = std::min<std::size_t>(values.size() - first, 1 + random() % 700);
      ExactSum part;
      ExactSquares(part).add(values.data() + first, static_cast<std::int64_t>(count));
      whole.add(part);
      first += count;
    }
    EXPECT_EQ(whole.value(), expected);
    EXPECT_EQ(ExactSum(whole.numbers()).value(), expected);
  }
}

// What is lost far below the sum's own bits is seen when the squares are taken away again.
TEST(ExactSum, OfSquaresHasEveryBitOfThem) {
  for (const auto& [lowest, highest] :
       {std::pair(-2, 12), std::pair(-12, 12), std::pair(-40, 12), std::pair(-149, 12),
        std::pair(-129, -126)}) {  // the last: subnormals alone
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
      const auto values = numbers(3000, seed, lowest, highest);
      ExactSum sum;
      ExactSquares(sum).add(values.data(), static_cast<std::int64_t>(values.size()));
      for (const float value : values) sum.add(-static_cast<double>(value) * value);
      EXPECT_EQ(sum.value(), 0.0) << "from 2^" << lowest << ", seed " << seed;
    }
  }
}

// 2^53 + 1 lies in the middle between two doubles, and goes to the even one; any more goes up.
TEST(ExactSum, IsRoundedOnceToTheNearestAndToEvenInTheMiddle) {
  EXPECT_EQ(plain({0x1p53, 1.0}), 0x1p53);
  EXPECT_EQ(plain({0x1p53, 1.0, 0x1p-298}), 0x1p53 + 2.0);
  EXPECT_EQ(plain({0x1p53, 1.0, 0x1p-20}), 0x1p53 + 2.0);
  EXPECT_EQ(plain({0x1p53, 2.0, 1.0}), 0x1p53 + 4.0);
  EXPECT_EQ(plain({0x1p53, 1.0, -0x1p-298}), 0x1p53);
  EXPECT_EQ(plain({0x1p250, 0x1p-298, -0x1p250}), 0x1p-298);
  EXPECT_EQ(plain({-0x1p250, -0x1p-298, 0x1p250}), -0x1p-298);
  EXPECT_EQ(plain({1e10, -3.5, -1e10}), -3.5);
  EXPECT_EQ(plain({}), 0.0);
}

TEST(ExactSum, HoldsManyOfTheLargestAndTheSmallestSquares) {
  const float largest = std::numeric_limits<float>::max();
  const float smallest = std::numeric_limits<float>::denorm_min();
  const std::vector<float> many(200'000, largest);
  EXPECT_EQ(squares(many), 200'000.0 * (static_cast<double>(largest) * largest));
  EXPECT_EQ(squares(std::vector<float>(200'000, smallest)), 200'000.0 * 0x1p-298);
  std::vector<float> both = many;
  both.push_back(smallest);
  EXPECT_EQ(squares(both), squares(many));
}

TEST(ExactSum, IsNotFiniteIfAnAddendIsNot) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
        -std::numeric_limits<float>::infinity()}) {
    EXPECT_FALSE(std::isfinite(squares({1.0f, bad, 2.0f})));
    ExactSum sum;
    sum.add(static_cast<double>(bad));
    EXPECT_FALSE(std::isfinite(ExactSum(sum.numbers()).value()));
  }
}

}  // namespace
}  // namespace sherd
