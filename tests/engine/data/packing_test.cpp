#include "engine/data/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "tests/where.h"

namespace sherd::data {
namespace {

using Lengths = std::vector<std::int32_t>;
using Rows = std::vector<Lengths>;

Lengths in_order(std::size_t count) {
  Lengths order(count);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

Rows lengths_of(const PackedRows& rows, const Lengths& lengths) {
  Rows result;
  for (std::int64_t row = 0; row < rows.count(); ++row) {
    result.emplace_back();
    for (const std::int32_t piece : rows.of(row)) {
      result.back().push_back(lengths[static_cast<std::size_t>(piece)]);
    }
  }
  return result;
}

// By hand: 7; 6; 5 opens a third; 4 leaves the 6 full, 3 the 7, and 2 joins the 5 rather than a new row.
TEST(Packing, GivesEachPieceTheRowThatItLeavesTheLeastRoomIn) {
  const Lengths lengths = {2, 7, 4, 5, 3, 6, 3};
  const PackedRows rows = best_fit(lengths, in_order(lengths.size()), 10);
  EXPECT_EQ(lengths_of(rows, lengths), (Rows{{7, 3}, {6, 4}, {5, 3, 2}}));
}

TEST(Packing, HasEveryPieceOnceAndNoRowTooLong) {
  Lengths lengths;
  for (int i = 0; i < 5000; ++i) lengths.push_back(1 + i * 7919 % 64);
  const PackedRows rows = best_fit(lengths, in_order(lengths.size()), 64);
  Lengths pieces = rows.pieces;
  std::sort(pieces.begin(), pieces.end());
  EXPECT_EQ(pieces, in_order(lengths.size()));
  for (const Lengths& row : lengths_of(rows, lengths)) {
    EXPECT_LE(std::accumulate(row.begin(), row.end(), 0), 64);
  }
}

TEST(Packing, MakesTheSameLengthsOfRowsInAnyOrderOfThePieces) {
  Lengths lengths;
  for (int i = 0; i < 500; ++i) lengths.push_back(1 + i * 31 % 40);
  Lengths order = in_order(lengths.size());
  const PackedRows first = best_fit(lengths, order, 64);
  std::reverse(order.begin(), order.end());
  const PackedRows second = best_fit(lengths, order, 64);
  EXPECT_EQ(lengths_of(first, lengths), lengths_of(second, lengths));
  EXPECT_NE(first.pieces, second.pieces);
}

// Sizes of 2,868 C and C++ headers of a Debian 12 in bytes / 4, long ones cut.
TEST(Packing, FillsRowsOf2048WithRealLengthsTo97Percent) {
  std::ifstream file(std::string(SHERD_SOURCE_DIR) + "/tests/reference/text_lengths.txt");
  Lengths lengths;
  constexpr std::int32_t kRow = 2048;
  for (std::int32_t length = 0; file >> length;) {
    for (; length > 0; length -= kRow) lengths.push_back(std::min(length, kRow));
  }
  ASSERT_GT(lengths.size(), 2868u);
  const auto tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const PackedRows rows = best_fit(lengths, in_order(lengths.size()), kRow);
  const double fill = static_cast<double>(tokens) / static_cast<double>(rows.count() * kRow);
  EXPECT_GE(fill, 0.97);
  RecordProperty("fill", std::to_string(fill));
}

// The spread of costs in a step, against that of rows in a shuffled order.
TEST(Packing, PutsRowsOfNearlyEqualCostIntoAStep) {
  constexpr std::int64_t kRows = 1000, kRowsPerStep = 8, kFirst = 3;
  std::vector<std::int64_t> costs;
  for (std::int64_t i = 0; i < kRows; ++i) costs.push_back(1000 + i * 7919 % 9000);
  const auto order = order_of_rows(costs, {kRowsPerStep, kFirst, 5});
  Lengths sorted = order;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, in_order(kRows));
  for (std::int64_t first = kRowsPerStep - kFirst; first + kRowsPerStep <= kRows;
       first += kRowsPerStep) {
    std::vector<std::int64_t> of_step;
    for (std::int64_t i = first; i < first + kRowsPerStep; ++i) {
      of_step.push_back(costs[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])]);
    }
    const auto [least, most] = std::minmax_element(of_step.begin(), of_step.end());
    if (first + 16 * kRowsPerStep <= kRows) {
      EXPECT_LE(*most - *least, 2500) << first;
    }
  }
  EXPECT_NE(order, order_of_rows(costs, {kRowsPerStep, kFirst, 6})) << "another key, another order";
}

}  // namespace
}  // namespace sherd::data
