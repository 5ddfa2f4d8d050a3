// A depth in groups: the tree of the whole is made of those of its halves, and is the matmul's sum.
#include "kernels/grouped_linear.h"

#include <gtest/gtest.h>

#include "tests/support/oracles/oracle_linear.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

// Rows of one block and of three, and depths of several pieces (kernels/cpu/matmul/matmul.h) in one group.
const LinearShape kShapes[] = {{1, 8, 3}, {37, 64, 19}, {601, 48, 24}, {5, 8 * 1600, 7}};

// Columns [first, first + count) of `rows` rows.
Values columns_of(const Values& all, std::int64_t rows, std::int64_t first, std::int64_t count) {
  const std::int64_t columns = std::ssize(all) / rows;
  Values part;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto begin = all.begin() + row * columns + first;
    part.insert(part.end(), begin, begin + count);
  }
  return part;
}

// One f32 addition each.
Values added(const Values& a, const Values& b) {
  Values sum;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum.push_back(static_cast<float>(a[i]) + static_cast<float>(b[i]));
  }
  return sum;
}

OwnedTensor forward(Stream& stream, const LinearShape& shape, DType dtype, const Values& x,
                    const Values& w, int groups) {
  OwnedTensor sum(DType::kF32, shape.tokens * shape.outputs);
  OwnedTensor workspace = test::workspace(grouped_linear_workspace_bytes(
      shape.tokens, shape.outputs, shape.inputs, groups, compute_device(stream)));
  const OwnedTensor x_TI(dtype, x), w_OI(dtype, w);
  grouped_forward(stream, {.shape = shape,
                           .depth = {groups, {{0, shape.inputs, shape.inputs / groups}}},
                           .x = x_TI,
                           .w = w_OI,
                           .sum = sum,
                           .workspace = workspace});
  return sum;
}

class GroupedLinear : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, GroupedLinear, test::compute_types(), test::type_name);

TEST_P(GroupedLinear, TheTreeIsTheSumOfItsHalvesTrees) {
  for (const LinearShape& shape : kShapes) {
    const auto [T, I, O] = shape;
    const Values x = test::random_values(T * I, 1), w = test::random_values(O * I, 2);
    const auto stream = test::compute_stream();
    const auto half = [&, T = T, I = I, O = O](std::int64_t first) {
      return forward(*stream, {T, I / 2, O}, GetParam(), columns_of(x, T, first, I / 2),
                     columns_of(w, O, first, I / 2), 4)
          .values();
    };
    const OwnedTensor expected(DType::kF32, added(half(0), half(I / 2)));
    EXPECT_TRUE(test::same_bits(forward(*stream, shape, GetParam(), x, w, 8), expected))
        << T << " tokens, depth " << I;
  }
}

TEST_P(GroupedLinear, ForwardMatchesTheOracleOnAnyNumberOfThreads) {
  for (const LinearShape& shape : kShapes) {
    const auto [T, I, O] = shape;
    const Values x = test::rounded(GetParam(), test::random_values(T * I, 1));
    const Values w = test::rounded(GetParam(), test::random_values(O * I, 2));
    for (const int groups : {1, 2, 8}) {
      const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
        return Outputs{forward(stream, shape, GetParam(), x, w, groups)};
      });
      EXPECT_TRUE(test::close(out[0], oracle::linear_forward(shape, x, w, {}),
                              test::rounded_once(DType::kF32)));
    }
  }
}

// Queries, keys and values next to one another; and vocabularies whose last groups have less, or nothing.
TEST_P(GroupedLinear, AGroupHasItsShareOfEveryFusedMatrix) {
  struct Row {
    std::vector<DepthRange> ranges;
    std::int64_t outputs;
  };
  for (const Row& row : {Row{{{0, 32, 4}, {32, 16, 2}, {48, 16, 2}}, 64}, Row{{{0, 43, 6}}, 43},
                         Row{{{0, 9, 2}}, 9}}) {
    const LinearShape shape{300, 21, row.outputs};
    const auto [T, I, O] = shape;
    const Values dy = test::random_values(T * O, 3), w = test::random_values(O * I, 4);
    const auto stream = test::compute_stream();
    // Each group alone by kernels/linear.h, range after range.
    std::vector<Values> groups;
    for (std::int64_t j = 0; j < 8; ++j) {
      OwnedTensor group(DType::kF32, Values(static_cast<std::size_t>(T * I)));
      for (const DepthRange& range : row.ranges) {
        const std::int64_t begin = std::min(j * range.of_a_group, range.count);
        const std::int64_t count = std::min(range.of_a_group, range.count - begin);
        if (count == 0) continue;
        const std::int64_t at = range.first + begin;
        const LinearShape part{T, I, count};
        const OwnedTensor rows(GetParam(),
                               Values(w.begin() + at * I, w.begin() + (at + count) * I));
        const OwnedTensor columns(GetParam(), columns_of(dy, T, at, count));
        if (GetParam() != DType::kF32) continue;  // a 16-bit sum would be rounded in between
        OwnedTensor workspace = test::workspace(
            linear_workspace_bytes(part, GetParam(), GetParam(), compute_device(*stream)));
        linear_backward_input(*stream, {part, columns, rows, group, true, workspace});
      }
      groups.push_back(group.values());
    }
    for (std::size_t count = 8; count > 1; count /= 2) {
      for (std::size_t i = 0; i < count / 2; ++i) {
        groups[i] = added(groups[2 * i], groups[2 * i + 1]);
      }
    }
    OwnedTensor sum(DType::kF32, T * I);
    OwnedTensor workspace =
        test::workspace(grouped_linear_workspace_bytes(T, I, O, 8, compute_device(*stream)));
    const OwnedTensor dy_TO(GetParam(), dy), w_OI(GetParam(), w);
    grouped_backward_input(*stream, {.shape = shape,
                                     .depth = {8, row.ranges},
                                     .dy = dy_TO,
                                     .w = w_OI,
                                     .sum = sum,
                                     .workspace = workspace});
    if (GetParam() == DType::kF32) {
      EXPECT_TRUE(test::same_bits(sum, OwnedTensor(DType::kF32, groups[0]))) << O;
    }
    EXPECT_TRUE(test::close(sum,
                            oracle::linear_backward_input(shape, dy_TO.values(), w_OI.values()),
                            test::rounded_once(DType::kF32)));
  }
}

TEST_P(GroupedLinear, TheSumIsRoundedOnceWithItsBias) {
  const auto stream = test::compute_stream();
  const OwnedTensor sum(DType::kF32, test::random_values(7 * 301, 5));
  const OwnedTensor bias(GetParam(), test::random_values(301, 6));
  OwnedTensor y(GetParam(), 7 * 301);
  grouped_finish(*stream, {7, 301, sum, bias, y});
  Values of_all_rows;
  for (int row = 0; row < 7; ++row) {
    const Values values = bias.values();
    of_all_rows.insert(of_all_rows.end(), values.begin(), values.end());
  }
  EXPECT_TRUE(test::same_bits(y, OwnedTensor(GetParam(), added(sum.values(), of_all_rows))));
}

}  // namespace
}  // namespace sherd::kernels
