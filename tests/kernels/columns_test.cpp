#include "kernels/columns.h"

#include <gtest/gtest.h>

#include "tests/support/tensors.h"

namespace sherd::kernels {
namespace {

using test::OwnedTensor;
using test::Values;

class ColumnsOfAMatrix : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, ColumnsOfAMatrix, test::compute_types(), test::type_name);

TEST_P(ColumnsOfAMatrix, AreStoredRoundedOrClearedAndTheOthersStay) {
  for (const Columns& columns :
       {Columns{1, 1, 0, 1}, {3, 5, 2, 2}, {200, 130, 7, 123}, {4, 6, 6, 0}}) {
    const Values before =
        test::rounded(GetParam(), test::random_values(columns.rows * columns.width, 1));
    const Values values = test::random_values(columns.rows * columns.count, 2);
    const OwnedTensor from(DType::kF32, values);
    const auto outputs = test::on_any_number_of_threads([&](Stream& stream) {
      test::Outputs out{{GetParam(), before}, {GetParam(), before}};
      store_columns(stream, columns, from, out[0]);
      clear_columns(stream, columns, out[1]);
      return out;
    });
    const Values given = from.values();
    Values stored = before, cleared = before;
    for (std::int64_t t = 0; t < columns.rows; ++t) {
      for (std::int64_t i = 0; i < columns.count; ++i) {
        const auto at = static_cast<std::size_t>(t * columns.width + columns.first + i);
        const double value = given[static_cast<std::size_t>(t * columns.count + i)];
        stored[at] = test::rounded(GetParam(), value);
        cleared[at] = 0.0;
      }
    }
    EXPECT_EQ(outputs[0].values(), stored);
    EXPECT_EQ(outputs[1].values(), cleared);
  }
}

}  // namespace
}  // namespace sherd::kernels
