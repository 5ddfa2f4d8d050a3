#include "kernels/columns.h"

#include <gtest/gtest.h>

#include "tests/support/values/tensors.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

class ColumnsOfAMatrix : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, ColumnsOfAMatrix, test::compute_types(), test::type_name);

constexpr Columns kShapes[] = {{1, 1, 0, 1}, {5, 700, 3, 300}, {9, 24, 16, 8}, {70, 33, 0, 33}};

TEST_P(ColumnsOfAMatrix, AreAddedToWithOneRoundingAndTheOthersStay) {
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

TEST_P(ColumnsOfAMatrix, AreTakenScaled) {
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
