#include "kernels/orthogonalise.h"

#include <gtest/gtest.h>

#include <Eigen/SVD>
#include <algorithm>
#include <cmath>

#include "tests/support/oracles/oracle_update.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

OwnedTensor orthogonalised(Stream& stream, const OwnedTensor& matrix, std::int64_t rows,
                           std::int64_t columns, DType dtype = DType::kF32,
                           Polynomials polynomials = Polynomials::kJordan) {
  OwnedTensor out = matrix;
  OwnedTensor workspace(DType::kF32, orthogonalise_workspace_numel(rows, columns, dtype));
  orthogonalise(stream, {out, rows, columns, dtype, workspace, polynomials});
  return out;
}

TEST(Orthogonalise, MatchesTheOracleOnAnyNumberOfThreads) {
  for (const auto& [rows, columns] :
       {std::pair{1, 1}, {1, 7}, {7, 1}, {13, 31}, {31, 13}, {64, 64}, {96, 200}, {200, 96}}) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
    const OwnedTensor matrix(DType::kF32, test::random_values(rows * columns, 1));
    const Outputs out = test::on_any_number_of_threads(
        [&](Stream& stream) { return Outputs{orthogonalised(stream, matrix, rows, columns)}; });
    // Five steps multiply small singular values by up to 3.4445^5 = 485, and their errors with
    // them.
    EXPECT_TRUE(test::close(out[0], oracle::orthogonalise(matrix.values(), rows, columns),
                            {1e-4, 1e-4, 0.0}));
  }
}

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Matrix as_matrix(const Values& values, std::int64_t rows, std::int64_t columns) {
  return Eigen::Map<const Matrix>(values.data(), rows, columns);
}
Eigen::VectorXd singular_values(const Values& values, std::int64_t rows, std::int64_t columns) {
  return Eigen::JacobiSVD<Eigen::MatrixXd>(as_matrix(values, rows, columns)).singularValues();
}

// The five steps as they act on one singular value.
double after_five_steps(double value) {
  for (int step = 0; step < 5; ++step) {
    const double square = value * value;
    value *= 3.4445 + square * (-4.7750 + square * 2.0315);
  }
  return value;
}

// The steps are odd polynomials: they change singular values and keep singular vectors.
TEST(Orthogonalise, KeepsSingularVectorsAndBringsSingularValuesNearOne) {
  for (const auto& [rows, columns] :
       {std::pair{5, 5}, {24, 24}, {13, 31}, {31, 13}, {8, 200}, {200, 8}, {96, 200}, {200, 96}}) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
    const OwnedTensor matrix(DType::kF32, test::random_values(rows * columns, 2));
    const Values result = orthogonalised(*test::compute_stream(2), matrix, rows, columns).values();
    const Eigen::JacobiSVD<Eigen::MatrixXd> svd(as_matrix(matrix.values(), rows, columns),
                                                Eigen::ComputeThinU | Eigen::ComputeThinV);
    const double norm = svd.singularValues().norm() + 1e-7;
    const Eigen::VectorXd expected = svd.singularValues().unaryExpr(
        [&](double value) { return after_five_steps(value / norm); });
    const Matrix product = svd.matrixU() * expected.asDiagonal() * svd.matrixV().transpose();
    EXPECT_LT((as_matrix(result, rows, columns) - product).cwiseAbs().maxCoeff(), 2e-5);
    const Eigen::VectorXd found = singular_values(result, rows, columns);
    EXPECT_GT(found.minCoeff(), 0.6);
    EXPECT_LT(found.maxCoeff(), 1.3);
  }
}

TEST(Orthogonalise, PolarExpressMatchesTheOracleOnAnyNumberOfThreads) {
  for (const auto& [rows, columns] :
       {std::pair{1, 1}, {1, 7}, {13, 31}, {31, 13}, {64, 64}, {96, 200}, {200, 96}}) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
    const OwnedTensor matrix(DType::kF32, test::random_values(rows * columns, 1));
    const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
      return Outputs{
          orthogonalised(stream, matrix, rows, columns, DType::kF32, Polynomials::kPolarExpress)};
    });
    // As above, with factors whose product is 990.
    EXPECT_TRUE(test::close(
        out[0], oracle::orthogonalise(matrix.values(), rows, columns, DType::kF64, true),
        {2e-4, 2e-4, 0.0}));
    // The paper's polynomials, evaluated in f64, are between 0.858 and 1.142 on [0.002, 1] / 1.02.
    const Eigen::VectorXd found = singular_values(out[0].values(), rows, columns);
    EXPECT_GT(found.minCoeff(), 0.85);
    EXPECT_LT(found.maxCoeff(), 1.15);
  }
}

// Without the factor 1.02, bf16 would take a singular value of 1 to where the first polynomial grows.
TEST(Orthogonalise, PolarExpressInBf16StaysNearOneFromALoneRowOn) {
  for (const auto& [rows, columns] : {std::pair{1, 200}, {200, 1}, {24, 24}, {96, 200}}) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
    const OwnedTensor matrix(DType::kF32, test::random_values(rows * columns, 2));
    const Values result = orthogonalised(*test::compute_stream(2), matrix, rows, columns,
                                         DType::kBF16, Polynomials::kPolarExpress)
                              .values();
    const Eigen::VectorXd found = singular_values(result, rows, columns);
    EXPECT_GT(found.minCoeff(), 0.8);
    EXPECT_LT(found.maxCoeff(), 1.2);
  }
}

TEST(Orthogonalise, LeavesTheRankOfADeficientMatrixAndIsFinite) {
  // Rank 2: every row is a sum of two.
  for (const auto& [rows, columns] : {std::pair{12, 12}, {9, 30}, {30, 9}}) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
    const Matrix left = as_matrix(test::random_values(rows * 2, 3), rows, 2);
    const Matrix right = as_matrix(test::random_values(2 * columns, 4), 2, columns);
    const Matrix matrix = left * right;
    const OwnedTensor tensor(DType::kF32, Values(matrix.data(), matrix.data() + matrix.size()));
    const Values result = orthogonalised(*test::compute_stream(2), tensor, rows, columns).values();
    ASSERT_TRUE(
        std::all_of(result.begin(), result.end(), [](double x) { return std::isfinite(x); }));
    const Eigen::VectorXd found = singular_values(result, rows, columns);
    EXPECT_GT(found[1], 0.6);
    EXPECT_LT(found[0], 1.3);
    // What rounding to f32 (2^-24) left of the others has grown by 3.4445^5 = 485.
    EXPECT_LT(found[2], 485 * 0x1p-24 * 4);
  }
}

TEST(Orthogonalise, OfOneRowIsItsDirection) {
  const Values result = orthogonalised(*test::compute_stream(),
                                       OwnedTensor(DType::kF32, Values{3e-3, 0.0, -4e-3}), 1, 3)
                            .values();
  // One singular value, which the normalisation makes 1 (its 1e-7 counts: 2e-5 of 5e-3).
  const double length = after_five_steps(5e-3 / (5e-3 + 1e-7));
  EXPECT_NEAR(result[0], 0.6 * length, 1e-6);
  EXPECT_EQ(result[1], 0.0);
  EXPECT_NEAR(result[2], -0.8 * length, 1e-6);
}

TEST(Orthogonalise, BringsSingularValuesOfADiagonalMatrixNearOne) {
  // On a diagonal matrix the iteration acts on each singular value alone.
  constexpr std::int64_t kRows = 4, kColumns = 6;
  Values values(kRows * kColumns, 0.0);
  for (std::size_t i = 0; i < kRows; ++i) values[i * kColumns + i] = 1.0 + static_cast<double>(i);
  const Values result =
      orthogonalised(*test::compute_stream(), OwnedTensor(DType::kF32, values), kRows, kColumns)
          .values();
  for (std::size_t i = 0; i < kRows; ++i) {
    for (std::size_t j = 0; j < kColumns; ++j) {
      if (i == j) {
        EXPECT_GT(result[i * kColumns + j], 0.65);
        EXPECT_LT(result[i * kColumns + j], 1.25);
      } else {
        EXPECT_NEAR(result[i * kColumns + j], 0.0, 1e-6);
      }
    }
  }
}

TEST(Orthogonalise, OfZeroIsZero) {
  const OwnedTensor zero(DType::kF32, Values(35, 0.0));
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    EXPECT_TRUE(test::same_bits(orthogonalised(*test::compute_stream(), zero, 5, 7, dtype), zero));
  }
}

float bf16(float value) {
  return static_cast<float>(BFloat16(value));
}
// The five steps on one singular value, rounded where the page says. Products of two bf16 numbers are exact in f32.
float after_five_steps_in_bf16(float value) {
  float x = bf16(value);
  for (int step = 0; step < 5; ++step) {
    const float a = bf16(x * x), a2 = bf16(a * a);
    const float polynomial = bf16(-4.7750f * a + 2.0315f * a2);
    x = bf16(3.4445f * x + bf16(polynomial * x));
  }
  return x;
}

TEST(Orthogonalise, InBf16RoundsEachMatrixOnceAsADiagonalOneShows) {
  for (const auto& [rows, columns] : {std::pair{40, 40}, {40, 70}, {70, 40}}) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
    const Values diagonal = test::random_values(40, 6);
    Values values(static_cast<std::size_t>(rows * columns), 0.0), expected = values;
    double sum = 0.0;
    for (const double value : diagonal) sum += value * value;
    const auto inverse = static_cast<float>(1.0 / (std::sqrt(sum) + 1e-7));
    for (std::size_t i = 0; i < diagonal.size(); ++i) {
      const std::size_t at = i * static_cast<std::size_t>(columns + 1);
      values[at] = diagonal[i];
      expected[at] = after_five_steps_in_bf16(inverse * static_cast<float>(diagonal[i]));
    }
    const OwnedTensor matrix(DType::kF32, values);
    const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
      return Outputs{orthogonalised(stream, matrix, rows, columns, DType::kBF16)};
    });
    EXPECT_EQ(out[0].values(), expected);
  }
}

// |x - y| as a part of |y|, over whole matrices.
double distance(const Values& x, const Values& y) {
  double apart = 0.0, size = 0.0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    apart += (x[i] - y[i]) * (x[i] - y[i]);
    size += y[i] * y[i];
  }
  return std::sqrt(apart / size);
}

// The oracle rounds at the same places, but its sums are exact. An f32 sum of up to 200 terms is off by some 2^-22, so
// about one in 2^13 lies so near to the middle between two bf16 numbers (2^-8 apart) that it is rounded to the other one.
// Small matrices meet none; large ones some dozens, each of one step of 2^-8, which later rounds multiply by at most 4.
// A rounding that is left out, or one too many, moves nearly all elements by some 2^-9.
//
// From the exact steps rounding leads away by some hundredths: a matrix that is rounded moves by about 2^-9.3 of its size
// (2^-8 / sqrt(12) for elements spread evenly over a binade), and where singular values are largest, 1.13, the five
// of a step enter its result with the factors 6.9, 3.7, 4, 4 and 1: 0.016 in the root of their squares. The next step
// takes a singular value's error times at most 1.4 there, often less than one: 0.04 holds for two steps' errors.
TEST(Orthogonalise, InBf16MatchesTheOracleThatRoundsAtTheSamePlaces) {
  for (const auto& [rows, columns] :
       {std::pair{1, 1}, {1, 7}, {7, 1}, {13, 31}, {31, 13}, {64, 64}, {96, 200}, {200, 96}}) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
    const OwnedTensor matrix(DType::kF32, test::random_values(rows * columns, 1));
    const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
      return Outputs{orthogonalised(stream, matrix, rows, columns, DType::kBF16)};
    });
    const Values found = out[0].values();
    const Values expected = oracle::orthogonalise(matrix.values(), rows, columns, DType::kBF16);
    EXPECT_LE(distance(found, expected), rows * columns < 1000 ? 0.0 : 0.01);
    const double from_exact =
        distance(found, oracle::orthogonalise(matrix.values(), rows, columns));
    EXPECT_LT(from_exact, 0.04);
    EXPECT_GT(from_exact, 0.002) << "nothing was rounded to bf16";
  }
}

TEST(Orthogonalise, InBf16BringsSingularValuesNearOneToo) {
  for (const auto& [rows, columns] :
       {std::pair{5, 5}, {24, 24}, {13, 31}, {31, 13}, {8, 200}, {200, 8}, {96, 200}, {200, 96}}) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
    const OwnedTensor matrix(DType::kF32, test::random_values(rows * columns, 2));
    const Values result =
        orthogonalised(*test::compute_stream(2), matrix, rows, columns, DType::kBF16).values();
    const Eigen::VectorXd found = singular_values(result, rows, columns);
    EXPECT_GT(found.minCoeff(), 0.6);
    EXPECT_LT(found.maxCoeff(), 1.3);
  }
}

}  // namespace
}  // namespace sherd::kernels
