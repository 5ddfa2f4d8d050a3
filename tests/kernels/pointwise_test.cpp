#include "kernels/pointwise.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tests/support/oracle_dtype.h"
#include "tests/support/oracle_norm.h"
#include "tests/support/oracle_philox.h"
#include "tests/support/oracle_pointwise.h"
#include "tests/support/tensors.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

constexpr std::int64_t kSizes[] = {1, 7, 8, 63, 64, 131, 4096, 4099, 50021};
constexpr Dropout kDropout{0.25f, {0x5eed5eed5eedull, 3, 12}, 0};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// `run(first, n)` computes elements [first, first + n) alone; every start beside a vector's border,
// odd lengths, short and long.
void expect_parts_equal(const OwnedTensor& whole,
                        const std::function<OwnedTensor(std::int64_t, std::int64_t)>& run) {
  for (std::int64_t first = 0; first < 10; ++first) {
    for (const std::int64_t n : {std::int64_t{1}, std::int64_t{13}, whole.numel() - first - 1}) {
      EXPECT_TRUE(test::same_bits(run(first, n), ConstTensor(whole).part(first, n)))
          << "elements " << first << " .. " << first + n - 1 << " alone";
    }
  }
}

class Pointwise : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, Pointwise, test::compute_types(), test::type_name);

TEST_P(Pointwise, FillZeroAndFillConstantWriteEveryElement) {
  for (const std::int64_t numel : kSizes) {
    const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
      Outputs outputs{{GetParam(), numel}, {GetParam(), numel}};
      fill_zero(stream, outputs[0]);
      fill_constant(stream, outputs[1], 0.3f);
      return outputs;
    });
    EXPECT_TRUE(test::same_bits(out[0], OwnedTensor(GetParam(), Values(out[0].values().size()))));
    EXPECT_TRUE(test::same_bits(
        out[1],
        OwnedTensor(GetParam(), Values(out[1].values().size(), static_cast<double>(0.3f)))));
  }
}

TEST_P(Pointwise, AddIsOneAdditionRoundedToTheAccumulatorsType) {
  for (const DType x_dtype : {GetParam(), DType::kF32}) {
    for (const std::int64_t numel : kSizes) {
      const OwnedTensor x(x_dtype, test::random_values(numel, 1));
      const OwnedTensor before(GetParam(), test::random_values(numel, 2, 3.0));
      const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
        OwnedTensor accumulator = before;
        add(stream, x, accumulator);
        return Outputs{accumulator};
      });
      const Values a = before.values(), b = x.values();
      Values sum(a.size());
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] = static_cast<double>(static_cast<float>(a[i]) + static_cast<float>(b[i]));
      }
      EXPECT_TRUE(test::same_bits(out[0], OwnedTensor(GetParam(), sum)));
    }
  }
}

TEST_P(Pointwise, SumInOrderAddsInF32FromTheFirstAndRoundsOnce) {
  for (const std::int64_t numel : kSizes) {
    Outputs inputs;
    for (std::uint64_t k = 0; k < 5; ++k) {
      inputs.emplace_back(GetParam(), test::random_values(numel, k, k == 2 ? 300.0 : 1.0));
    }
    Values sum = inputs[0].values();
    for (std::size_t k = 1; k < inputs.size(); ++k) {
      const Values next = inputs[k].values();
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] = static_cast<double>(static_cast<float>(sum[i]) + static_cast<float>(next[i]));
      }
    }
    const OwnedTensor expected(GetParam(), sum);
    std::vector<ConstTensor> views(inputs.begin(), inputs.end());
    OwnedTensor out(GetParam(), numel);
    sum_in_order_on_host(views.data(), 5, out);
    EXPECT_TRUE(test::same_bits(out, expected));

    for (const std::size_t k : {std::size_t{0}, std::size_t{3}}) {
      OwnedTensor in_place = inputs[k];
      std::vector<ConstTensor> aliased = views;
      aliased[k] = in_place;
      sum_in_order_on_host(aliased.data(), 5, in_place);
      EXPECT_TRUE(test::same_bits(in_place, expected)) << "into input " << k;
    }
    sum_in_order_on_host(views.data(), 1, out);
    EXPECT_TRUE(test::same_bits(out, inputs[0])) << "of one";
  }
}

TEST_P(Pointwise, ResidualAddAndDropoutMatchTheOracleOnAnyNumberOfThreads) {
  for (const std::int64_t numel : kSizes) {
    for (const float probability : {0.0f, 0.25f, 0.9f}) {
      for (const std::int64_t first : {0, 1, 2, 7}) {
        Dropout dropout = kDropout;
        dropout.probability = probability;
        dropout.first_element = first;
        const OwnedTensor residual(GetParam(), test::random_values(numel, 1));
        const OwnedTensor branch(GetParam(), test::random_values(numel, 2));
        const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
          Outputs outputs{{GetParam(), numel}, {GetParam(), numel}};
          residual_add(stream, residual, branch, dropout, outputs[0]);
          dropout_backward(stream, branch, dropout, outputs[1]);
          return outputs;
        });
        const Values mask = oracle::dropout_mask(dropout, numel);
        const test::Tolerance tolerance = test::rounded_once(GetParam());
        EXPECT_TRUE(test::close(
            out[0], oracle::masked_sum(residual.values(), branch.values(), mask), tolerance));
        EXPECT_TRUE(test::close(out[1], oracle::product(mask, branch.values()), tolerance));
        if (probability == 0.0f) {
          EXPECT_TRUE(test::same_bits(out[1], branch)) << "p = 0 is the identity";
        }

        OwnedTensor in_place = residual, gradient = branch;
        const auto stream = test::compute_stream();
        residual_add(*stream, in_place, branch, dropout, in_place);
        dropout_backward(*stream, gradient, dropout, gradient);
        EXPECT_TRUE(test::same_bits(in_place, out[0]));
        EXPECT_TRUE(test::same_bits(gradient, out[1]));
      }
    }
  }
}

TEST_P(Pointwise, AnElementHasTheSameBitsWhereverItLies) {
  constexpr std::int64_t kNumel = 557;
  const auto stream = test::compute_stream();
  const OwnedTensor a(GetParam(), test::random_values(kNumel, 1));
  const OwnedTensor b(GetParam(), test::random_values(kNumel, 2));
  const auto part = [](const OwnedTensor& tensor, std::int64_t first, std::int64_t n) {
    return ConstTensor(tensor).part(first, n);
  };
  const auto added = [&](std::int64_t first, std::int64_t n) {
    OwnedTensor out = a;
    add(*stream, part(b, first, n), Tensor(out).part(first, n));
    return OwnedTensor(GetParam(), test::values_of(part(out, first, n)));
  };
  const auto summed = [&](std::int64_t first, std::int64_t n) {
    OwnedTensor out(GetParam(), n);
    const ConstTensor inputs[] = {part(a, first, n), part(b, first, n), part(a, first, n)};
    sum_in_order_on_host(inputs, 3, out);
    return out;
  };
  const auto dropped = [&](std::int64_t first, std::int64_t n) {
    OwnedTensor out(GetParam(), n);
    Dropout dropout = kDropout;
    dropout.first_element = 1000 + first;
    residual_add(*stream, part(a, first, n), part(b, first, n), dropout, out);
    return out;
  };
  const auto gradient = [&](std::int64_t first, std::int64_t n) {
    OwnedTensor out(GetParam(), n);
    Dropout dropout = kDropout;
    dropout.first_element = 1000 + first;
    dropout_backward(*stream, part(b, first, n), dropout, out);
    return out;
  };
  const auto widened = [&](std::int64_t first, std::int64_t n) {
    OwnedTensor out(DType::kF32, n);
    cast(*stream, part(a, first, n), out);
    return out;
  };
  expect_parts_equal(added(0, kNumel), added);
  expect_parts_equal(summed(0, kNumel), summed);
  expect_parts_equal(dropped(0, kNumel), dropped);
  expect_parts_equal(gradient(0, kNumel), gradient);
  expect_parts_equal(widened(0, kNumel), widened);
}

TEST(PointwiseDropout, KeepsTheFractionAskedFor) {
  constexpr std::int64_t kNumel = 200000;
  for (const float probability : {0.1f, 0.5f, 0.8f}) {
    Dropout dropout = kDropout;
    dropout.probability = probability;
    const OwnedTensor ones(DType::kF32, Values(kNumel, 1.0));
    OwnedTensor out(DType::kF32, kNumel);
    dropout_backward(*test::compute_stream(2), ones, dropout, out);
    double kept = 0.0;
    for (const double value : out.values()) kept += value != 0.0 ? 1.0 : 0.0;
    const double p = static_cast<double>(probability);
    // Five standard deviations of a binomial count.
    EXPECT_NEAR(kept / kNumel, 1.0 - p, 5.0 * std::sqrt(p * (1.0 - p) / kNumel));
  }
}

TEST(PointwiseDropout, CountsElementsIn64Bits) {
  Dropout dropout = kDropout;
  dropout.first_element = (std::int64_t{1} << 34) - 5;
  const OwnedTensor ones(DType::kF32, Values(40, 1.0));
  OwnedTensor out(DType::kF32, 40);
  dropout_backward(*test::compute_stream(), ones, dropout, out);
  EXPECT_TRUE(test::close(out, oracle::dropout_mask(dropout, 40), test::rounded_once(DType::kF32)));
}

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
  // Every border between two neighbours, and the floats beside it; then random patterns.
  std::vector<float> inputs{kInfinity, -kInfinity, 0.0f, -0.0f, std::numeric_limits<float>::max()};
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
                                 std::nextafter(border, kInfinity)});
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

double sum_of_squares_of(Stream& stream, ConstTensor x) {
  OwnedTensor out(DType::kF64, 1);
  OwnedTensor workspace(DType::kF64, sum_of_squares_workspace_bytes(x.numel) / 8);
  sum_of_squares(stream, x, out, workspace);
  return out.values()[0];
}

TEST_P(Pointwise, SumOfSquaresMatchesTheOracleOnAnyNumberOfThreads) {
  for (const std::int64_t numel : kSizes) {
    const OwnedTensor x(GetParam(), test::random_values(numel, 1));
    const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
      return Outputs{{DType::kF64, Values{sum_of_squares_of(stream, x)}}};
    });
    // f64 throughout: only the order of the additions differs.
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

TEST_P(Pointwise, FindNonFiniteNamesTheFirst) {
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

}  // namespace
}  // namespace sherd::kernels
