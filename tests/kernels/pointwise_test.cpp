#include "kernels/pointwise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/parts.h"
#include "tests/support/oracles/oracle_dtype.h"
#include "tests/support/oracles/oracle_norm.h"
#include "tests/support/oracles/oracle_philox.h"
#include "tests/support/oracles/oracle_pointwise.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

constexpr std::int64_t kSizes[] = {1, 7, 8, 63, 64, 131, 4096, 4099, 50021};
constexpr Dropout kPointwiseDropout{0.25f, {0x5eed5eed5eedull, 3, 12}, 0};

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

TEST(PointwiseAverage, MovesTowardsTheValuesAndStaysWhereTheyAreEqual) {
  for (const std::int64_t numel : kSizes) {
    const OwnedTensor x(DType::kF32, test::random_values(numel, 1));
    const OwnedTensor before(DType::kF32, test::random_values(numel, 2, 3.0));
    const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
      Outputs outputs{before, x, before};
      move_towards(stream, x, 0.3f, outputs[0]);
      move_towards(stream, x, 0.3f, outputs[1]);
      move_towards(stream, x, 1.0f, outputs[2]);
      return outputs;
    });
    const Values a = before.values(), b = x.values();
    Values moved(a.size());
    for (std::size_t i = 0; i < moved.size(); ++i) {
      const auto mean = static_cast<float>(a[i]);
      moved[i] = mean + 0.3f * (static_cast<float>(b[i]) - mean);
    }
    EXPECT_TRUE(test::same_bits(out[0], OwnedTensor(DType::kF32, moved)));
    EXPECT_TRUE(test::same_bits(out[1], x)) << "an average of equal values";
    EXPECT_TRUE(test::same_bits(out[2], x)) << "weight 1 copies";
  }
}

TEST(PointwiseAverage, IsExchangedWithTheValues) {
  for (const std::int64_t numel : kSizes) {
    const OwnedTensor a(DType::kF32, test::random_values(numel, 1));
    const OwnedTensor b(DType::kF32, test::random_values(numel, 2));
    const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
      Outputs outputs{a, b};
      exchange(stream, outputs[0], outputs[1]);
      return outputs;
    });
    EXPECT_TRUE(test::same_bits(out[0], b));
    EXPECT_TRUE(test::same_bits(out[1], a));
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

// In f32: neighbours first, then pairs of them; also into one of the inputs.
TEST_P(Pointwise, SumAsTreeAddsHalvesAndRoundsOnce) {
  for (const std::int64_t numel : kSizes) {
    Outputs inputs;
    std::vector<std::vector<float>> sums;
    for (std::uint64_t k = 0; k < 4; ++k) {
      inputs.emplace_back(GetParam(), test::random_values(numel, k, k == 2 ? 300.0 : 1.0));
      const Values values = inputs.back().values();
      sums.emplace_back(values.begin(), values.end());
    }
    Values tree;
    for (std::size_t i = 0; i < sums[0].size(); ++i) {
      tree.push_back((sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]));
    }
    const OwnedTensor expected(GetParam(), tree);
    const std::vector<ConstTensor> views(inputs.begin(), inputs.end());
    OwnedTensor out(GetParam(), numel);
    sum_as_trees_on_host(views.data(), 4, 4, out);
    EXPECT_TRUE(test::same_bits(out, expected));
    sum_as_trees_on_host(views.data(), 4, 4, inputs[2]);
    EXPECT_TRUE(test::same_bits(inputs[2], expected)) << "into an input";
  }
}

TEST_P(Pointwise, ResidualAddAndDropoutMatchTheOracleOnAnyNumberOfThreads) {
  for (const std::int64_t numel : kSizes) {
    for (const float probability : {0.0f, 0.25f, 0.9f}) {
      for (const std::int64_t first : {0, 1, 2, 7}) {
        Dropout dropout = kPointwiseDropout;
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
    Dropout dropout = kPointwiseDropout;
    dropout.first_element = 1000 + first;
    residual_add(*stream, part(a, first, n), part(b, first, n), dropout, out);
    return out;
  };
  const auto gradient = [&](std::int64_t first, std::int64_t n) {
    OwnedTensor out(GetParam(), n);
    Dropout dropout = kPointwiseDropout;
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
    Dropout dropout = kPointwiseDropout;
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

// Of 3 sequences of 10 rows of 300 columns, rows 4 to 6 of each and columns 20 to 269; or all columns, where what is
// drawn at once goes over the ends of rows. The tensor begins with the second of these rows.
TEST(PointwiseDropout, OfAPartIsThatOfItsPlacesInTheWhole) {
  constexpr std::int64_t kAllRows = 10, kAllColumns = 300, kRows = 3, kSequences = 3;
  Dropout whole = kPointwiseDropout;
  whole.first_element = 12345;
  const Values mask = oracle::dropout_mask(whole, kSequences * kAllRows * kAllColumns);
  for (const auto& [first_column, columns] : {std::pair(20, 250), {0, 300}}) {
    Dropout dropout = whole;
    dropout.first_element += 4 * kAllColumns + first_column;
    dropout.part = {columns, kAllColumns, kRows, kAllRows, 1};
    Values expected;
    for (std::int64_t row = 1; row < kSequences * kRows; ++row) {
      const std::int64_t there = row / kRows * kAllRows + 4 + row % kRows;
      const auto begin = mask.begin() + there * kAllColumns + first_column;
      expected.insert(expected.end(), begin, begin + columns);
    }
    const OwnedTensor ones(DType::kF32, Values(expected.size(), 1.0));
    OwnedTensor out(DType::kF32, ones.numel());
    dropout_backward(*test::compute_stream(2), ones, dropout, out);
    EXPECT_TRUE(test::close(out, expected, test::rounded_once(DType::kF32)));
  }
}

TEST(PointwiseDropout, CountsElementsIn64Bits) {
  Dropout dropout = kPointwiseDropout;
  dropout.first_element = (std::int64_t{1} << 34) - 5;
  const OwnedTensor ones(DType::kF32, Values(40, 1.0));
  OwnedTensor out(DType::kF32, 40);
  dropout_backward(*test::compute_stream(), ones, dropout, out);
  EXPECT_TRUE(test::close(out, oracle::dropout_mask(dropout, 40), test::rounded_once(DType::kF32)));
}

}  // namespace
}  // namespace sherd::kernels
