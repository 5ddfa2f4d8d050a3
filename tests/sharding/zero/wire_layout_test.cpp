#include "sharding/zero/wire_layout.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "sharding/zero/coded_gather.h"
#include "sharding/zero/coded_reduction.h"
#include "tests/sharding/sharding_support.h"
#include "tests/support/values/tensors.h"

namespace sherd::sharding {
namespace {

using kernels::BlockFormat;
using test::OwnedTensor;

UnitSpec unit_of(std::vector<std::vector<std::int64_t>> shapes) {
  UnitSpec unit{"block.0", UnitClass::kBlock, {}};
  for (std::vector<std::int64_t>& shape : shapes) {
    unit.parameters.push_back({"p", std::move(shape), {}, 0});
  }
  return unit;
}

// A norm of 65, which takes 128 elements; a matrix of 5 x 40, which takes 256; a bias of 3; padding
// to 2 x 64 x 4. The first piece is one half of 512.
TEST(WireLayout, SendsVectorsAsF32AndTheRestInBlocks) {
  const UnitSpec unit = unit_of({{65}, {5, 40}, {3}});
  const FlatLayout flat(unit, 4);
  ASSERT_EQ(flat.numel(), 512);
  const WireLayout halves(unit, flat, BlockFormat::kInt8, 2);
  EXPECT_EQ(halves.runs(0), (std::vector<WireRun>{{BlockFormat::kF32, 0, 128, 0, 512},
                                                  {BlockFormat::kInt8, 128, 128, 512, 132}}));
  EXPECT_EQ(halves.runs(1), (std::vector<WireRun>{{BlockFormat::kInt8, 0, 128, 0, 132},
                                                  {BlockFormat::kF32, 128, 64, 144, 256},
                                                  {BlockFormat::kInt8, 192, 64, 400, 66}}));
  EXPECT_EQ(halves.piece_bytes(), 704) << "512 + 132, rounded up to 64: of the longest piece";
  EXPECT_EQ(halves.bytes(), 2 * 704);
  EXPECT_EQ(WireLayout(unit, flat, BlockFormat::kInt4, 2).piece_bytes(), 640);
}

TEST(WireLayout, MatricesAloneTakeEightBitsAndAQuarter) {
  const UnitSpec unit = unit_of({{256, 512}, {512, 128}});
  const FlatLayout flat(unit, 2);
  const auto bytes = [&](BlockFormat format) { return WireLayout(unit, flat, format, 2).bytes(); };
  EXPECT_EQ(bytes(BlockFormat::kInt8), flat.numel() * 66 / 64);
  EXPECT_EQ(bytes(BlockFormat::kInt4), flat.numel() * 34 / 64);
}

TEST(WireLayout, AUnitWithoutParametersHasNoBytes) {
  const UnitSpec unit = unit_of({});
  EXPECT_EQ(WireLayout(unit, FlatLayout(unit, 3), BlockFormat::kInt8, 3).bytes(), 0);
}

// However many pieces there are, an element is rounded with the same neighbours.
TEST(WireLayout, RoundsTheSameElementsTheSameWayInAnyNumberOfPieces) {
  const UnitSpec unit = unit_of({{65}, {7, 100}, {3}, {33, 11}, {9, 9}});
  const auto stream = test::compute_stream(1);
  for (const BlockFormat format : {BlockFormat::kInt8, BlockFormat::kInt4}) {
    std::vector<test::Values> results;
    for (const int pieces : {1, 2, 3, 4, 12}) {
      const FlatLayout flat(unit, 12);
      const WireLayout layout(unit, flat, format, pieces);
      const OwnedTensor x(DType::kF32, test::random_values(flat.numel(), 5));
      OwnedTensor out(DType::kF32, flat.numel()), rounded(DType::kF32, flat.numel());
      OwnedTensor bytes(DType::kU8, layout.bytes());
      const std::int64_t numel = layout.piece_numel(), size = layout.piece_bytes();
      for (int piece = 0; piece < pieces; ++piece) {
        const Tensor own = bytes.tensor().part(piece * size, size);
        layout.encode(*stream, piece, x.tensor().part(piece * numel, numel), own);
        layout.sum(*stream, piece, own, 1, out.tensor().part(piece * numel, numel), false);
        layout.round(*stream, piece, x.tensor().part(piece * numel, numel),
                     rounded.tensor().part(piece * numel, numel));
      }
      stream->synchronize();
      EXPECT_TRUE(test::same_bits(out, rounded)) << pieces;
      results.push_back(out.values());
      const test::Values exact = x.values();
      for (std::int64_t i = 0; i < 65; ++i) {
        EXPECT_EQ(results.back()[static_cast<std::size_t>(i)], exact[static_cast<std::size_t>(i)]);
      }
      EXPECT_NE(results.back()[200], exact[200]);
      EXPECT_EQ(results.back(), results.front()) << pieces << " pieces";
    }
  }
}

ParameterSpec cut(std::vector<std::int64_t> shape, const Box& box) {
  ParameterSpec parameter{"matrix", {box.num_rows, box.num_columns}, {}, 0};
  parameter.cut.emplace();
  parameter.cut->shape = std::move(shape);
  parameter.cut->held.push_back({box, true});
  return parameter;
}

TEST(WireLayout, TellsWhetherACutPassesThroughABlock) {
  const auto cuts = [](std::vector<std::int64_t> shape, const Box& box) {
    UnitSpec unit{"block.0", UnitClass::kBlock, {cut(std::move(shape), box)}};
    return cuts_blocks(unit) != nullptr;
  };
  const auto box = [](std::int64_t row, std::int64_t column, std::int64_t rows,
                      std::int64_t columns) {
    Box box;
    box.first_row = row;
    box.first_column = column;
    box.num_rows = rows;
    box.num_columns = columns;
    return box;
  };
  EXPECT_FALSE(cuts({10, 128}, box(0, 64, 10, 64)));
  EXPECT_TRUE(cuts({10, 96}, box(0, 48, 10, 48)));
  EXPECT_TRUE(cuts({10, 96}, box(0, 0, 10, 64))) << "rows of the whole aren't whole blocks";
  EXPECT_FALSE(cuts({8, 16}, box(4, 0, 4, 16)));
  EXPECT_TRUE(cuts({8, 12}, box(4, 0, 4, 12))) << "row 4 begins within a block";
  EXPECT_FALSE(cuts({20, 16}, box(16, 0, 4, 16))) << "the last block is short anyway";
}

}  // namespace
}  // namespace sherd::sharding
