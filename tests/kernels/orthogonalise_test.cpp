#include "kernels/orthogonalise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/oracle_update.h"
#include "tests/support/tensors.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

OwnedTensor orthogonalised(Stream& stream, const OwnedTensor& matrix, std::int64_t rows,
                           std::int64_t columns) {
  OwnedTensor out = matrix;
  OwnedTensor workspace(DType::kF32, orthogonalise_workspace_numel(rows, columns));
  orthogonalise(stream, out, rows, columns, workspace);
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
  EXPECT_TRUE(test::same_bits(orthogonalised(*test::compute_stream(), zero, 5, 7), zero));
}

}  // namespace
}  // namespace sherd::kernels
