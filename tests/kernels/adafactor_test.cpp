// Adafactor's kernels: sums of rows and columns wherever a slice is cut, and the update by hand.
#include "kernels/adafactor.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/exact_sum.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels {
namespace {

using test::OwnedTensor;
using test::Values;

constexpr std::int64_t kRows = 300, kColumns = 37, kNumbers = kRows + kColumns;

// Whole numbers, so that sums of squares are exact in f64.
double gradient_at(std::int64_t element) {
  return static_cast<double>(element * 7919 % 17 - 8);
}

// Adds the squares of elements [begin, end) of the matrix, as segments of at most `longest`.
void add_squares(std::int64_t begin, std::int64_t end, std::int64_t longest, DType type,
                 int threads, OwnedTensor& sums) {
  Values values;
  for (std::int64_t i = begin; i < end; ++i) values.push_back(gradient_at(i));
  const OwnedTensor gradient(type, values), parameter(DType::kF32, Values(values.size(), 0.0));
  std::vector<UpdateSegment> segments;
  std::vector<AdafactorPlace> places;
  for (std::int64_t first = begin; first < end; first += longest) {
    segments.push_back({.first = first - begin, .count = std::min(longest, end - first)});
    places.push_back({.columns = kColumns, .first = first, .row = 0, .column = kRows});
  }
  const auto stream = test::compute_stream(threads);
  adafactor_squares(*stream,
                    {.common = {.parameter = parameter.tensor(),
                                .gradient = gradient.tensor(),
                                .segments = segments,
                                .gradient_scale = 0.5f},
                     .places = places,
                     .variances = {},
                     .scales = {}},
                    sums.tensor());
  stream->synchronize();
}

Values totals(const OwnedTensor& sums) {
  Values values;
  for (std::int64_t i = 0; i < kNumbers; ++i) {
    values.push_back(
        ExactSum(std::span<const double>(sums.tensor().as<double>() + i * ExactSum::kNumbers,
                                         ExactSum::kNumbers))
            .value());
  }
  return values;
}

TEST(AdafactorSquares, AreThoseOfRowsAndColumnsWhereverSlicesAndSegmentsAreCut) {
  Values expected(kNumbers, 0.0);
  for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
    const double square = 0.25 * gradient_at(i) * gradient_at(i);
    expected[static_cast<std::size_t>(i / kColumns)] += square;
    expected[static_cast<std::size_t>(kRows + i % kColumns)] += square;
  }
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const std::int64_t cut : {std::int64_t{0}, std::int64_t{1}, std::int64_t{4099}}) {
      OwnedTensor sums(DType::kF64, Values(kNumbers * ExactSum::kNumbers, 0.0));
      add_squares(0, cut, 5000, type, 1, sums);
      add_squares(cut, kRows * kColumns, 997, type, 2, sums);
      EXPECT_EQ(totals(sums), expected) << name_of(type) << " " << cut;
    }
  }
}

// g = (3, 4; 0, 0), w = 1: rows 12.5 and 0, columns 4.5 and 8, the mean of rows 6.25, so that
// v = 2 (4.5, 8) = (9, 16) and u = (1, 1; 0, 0).
TEST(AdafactorUpdates, AreByHand) {
  const OwnedTensor gradient(DType::kF32, Values{3, 4, 0, 0});
  const OwnedTensor parameter(DType::kF32, Values{1, 2, 3, 4});
  OwnedTensor variances(DType::kF32, Values(4, 0.0)), scales(DType::kF32, Values(1, 0.0));
  OwnedTensor sums(DType::kF64, Values(4 * ExactSum::kNumbers, 0.0));
  Values means = {25, 0, 9, 16};
  for (std::size_t i = 0; i < 4; ++i) {
    sums.tensor().as<double>()[i * ExactSum::kNumbers] = means[i];
  }
  const UpdateSegment segments[] = {{.first = 0, .count = 4, .weight_decay = 0.5f}};
  const AdafactorPlace places[] = {{.columns = 2, .row = 0, .column = 2}};
  const AdafactorMatrix matrices[] = {{.rows = 2, .columns = 2, .row = 0, .column = 2}};
  const auto stream = test::compute_stream(1);
  adafactor_variances(*stream, {.matrices = matrices,
                                .sums = sums.tensor(),
                                .variances = variances.tensor(),
                                .scales = scales.tensor()});
  stream->synchronize();
  EXPECT_EQ(variances.values(), (Values{12.5, 0, 4.5, 8}));
  const AdafactorUpdate args = {.common = {.parameter = parameter.tensor(),
                                           .gradient = gradient.tensor(),
                                           .segments = segments,
                                           .lr = 0.5f},
                                .places = places,
                                .variances = variances.tensor(),
                                .scales = scales.tensor()};
  OwnedTensor norms(DType::kF64, Values(2 * ExactSum::kNumbers, 0.0));
  adafactor_norms(*stream, args, norms.tensor());
  stream->synchronize();
  const double* numbers = norms.tensor().as<double>();
  EXPECT_EQ(ExactSum(std::span<const double>(numbers, ExactSum::kNumbers)).value(), 30.0);
  EXPECT_NEAR(
      ExactSum(std::span<const double>(numbers + ExactSum::kNumbers, ExactSum::kNumbers)).value(),
      2.0, 1e-6);
  const std::vector<float> ratios = {0.25f};
  adafactor_apply(*stream, args, ratios);
  stream->synchronize();
  const Values expected = {0.75 - 0.25, 1.5 - 0.25, 2.25, 3.0};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(parameter.values()[i], expected[i], 1e-6) << i;
}

}  // namespace
}  // namespace sherd::kernels
