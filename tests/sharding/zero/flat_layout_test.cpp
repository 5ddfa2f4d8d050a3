#include "sharding/zero/flat_layout.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace sherd::sharding {
namespace {

UnitSpec unit_of(const std::vector<std::vector<std::int64_t>>& shapes) {
  UnitSpec unit{"unit", UnitClass::kBlock, {}};
  for (const auto& shape : shapes) {
    unit.parameters.push_back({"p" + std::to_string(unit.parameters.size()), shape, {}, 0});
  }
  return unit;
}

TEST(FlatLayout, StartsEveryParameterAtAMultipleOf64Elements) {
  const FlatLayout layout(unit_of({{91}, {64}, {1}, {13, 5}}), 1);
  EXPECT_EQ(layout.offset(0), 0);
  EXPECT_EQ(layout.offset(1), 128);
  EXPECT_EQ(layout.offset(2), 192);
  EXPECT_EQ(layout.offset(3), 256);
  EXPECT_EQ(layout.numel(), 384);
}

TEST(FlatLayout, PadsTheWholeToWorldTimes64) {
  const UnitSpec unit = unit_of({{91}, {65}});  // 128 + 128
  constexpr std::int64_t kNumel[] = {256, 256, 384, 256, 320, 384, 448, 512, 576};
  for (int world = 1; world <= 9; ++world) {
    const FlatLayout layout(unit, world);
    EXPECT_EQ(layout.numel(), kNumel[world - 1]) << "world " << world;
    EXPECT_EQ(layout.slice_numel() * world, layout.numel());
    EXPECT_EQ(layout.slice_numel() % 64, 0);
  }
}

TEST(FlatLayout, GivesEveryRankASliceEvenOfOneElement) {
  const FlatLayout layout(unit_of({{1}}), 5);
  EXPECT_EQ(layout.numel(), 320);
  EXPECT_EQ(layout.pieces(0).size(), 1u);
  for (int slice_index = 1; slice_index < 5; ++slice_index)
    EXPECT_TRUE(layout.pieces(slice_index).empty());
}

TEST(FlatLayout, GivesAUnitWithoutParametersNothing) {
  const FlatLayout layout(unit_of({}), 3);
  EXPECT_EQ(layout.numel(), 0);
  for (int slice_index = 0; slice_index < 3; ++slice_index)
    EXPECT_TRUE(layout.pieces(slice_index).empty());
}

// Writes each piece's (parameter, element) into its slice, then reads it through the views.
TEST(FlatLayout, CoversEveryElementOnceInWorldsOneToNine) {
  const std::vector<std::vector<std::vector<std::int64_t>>> units = {
      {{1}}, {{63}, {64}, {65}}, {{7, 11}, {11}, {129}, {3, 5, 7}}, {{1000}, {1}, {1}, {2, 333}}};
  for (const auto& shapes : units) {
    const UnitSpec unit = unit_of(shapes);
    for (int world = 1; world <= 9; ++world) {
      const FlatLayout layout(unit, world);
      std::vector<std::int32_t> memory(static_cast<std::size_t>(layout.numel()), -1);
      const Tensor full{memory.data(), DType::kI32, layout.numel()};
      std::int64_t covered = 0;
      for (int slice_index = 0; slice_index < world; ++slice_index) {
        auto* slice = layout.slice(full, slice_index).as<std::int32_t>();
        for (const Piece& piece : layout.pieces(slice_index)) {
          ASSERT_GE(piece.position, 0);
          ASSERT_LE(piece.position + piece.count, layout.slice_numel());
          for (std::int64_t i = 0; i < piece.count; ++i, ++covered) {
            std::int32_t& element = slice[piece.position + i];
            ASSERT_EQ(element, -1) << "two pieces share an element";
            element = static_cast<std::int32_t>(piece.parameter * 10000 + piece.first_element + i);
          }
        }
      }
      const std::vector<Tensor> views = layout.views(full);
      ASSERT_EQ(views.size(), unit.parameters.size());
      std::int64_t total = 0;
      for (std::size_t p = 0; p < views.size(); ++p) {
        ASSERT_EQ(views[p].numel, unit.parameters[p].numel());
        total += views[p].numel;
        for (std::int64_t i = 0; i < views[p].numel; ++i) {
          ASSERT_EQ(views[p].as<std::int32_t>()[i], static_cast<std::int32_t>(p * 10000) + i)
              << "world " << world;
        }
      }
      EXPECT_EQ(covered, total);
    }
  }
}

TEST(FlatLayout, CutsATensorThatStraddlesTwoRanks) {
  const FlatLayout layout(unit_of({{64}, {100}}), 2);  // 64 + 128, padded to 256: slices of 128
  ASSERT_EQ(layout.slice_numel(), 128);
  const std::vector<Piece> first = layout.pieces(0), second = layout.pieces(1);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[1].parameter, 1);
  EXPECT_EQ(first[1].first_element, 0);
  EXPECT_EQ(first[1].count, 64);
  EXPECT_EQ(first[1].position, 64);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].parameter, 1);
  EXPECT_EQ(second[0].first_element, 64);
  EXPECT_EQ(second[0].count, 36);
  EXPECT_EQ(second[0].position, 0);
}

TEST(FlatLayout, CutsATensorThatStraddlesThreeRanks) {
  const FlatLayout layout(unit_of({{10}, {120}}), 3);  // 64 + 128 = 3 slices of 64
  ASSERT_EQ(layout.slice_numel(), 64);
  EXPECT_EQ(layout.pieces(0).size(), 1u);
  EXPECT_EQ(layout.pieces(1)[0].first_element, 0);
  EXPECT_EQ(layout.pieces(1)[0].count, 64);
  EXPECT_EQ(layout.pieces(2)[0].first_element, 64);
  EXPECT_EQ(layout.pieces(2)[0].count, 56);

  const FlatLayout wide(unit_of({{170}}), 3);  // one tensor over all three
  std::vector<std::int64_t> counts;
  for (int slice_index = 0; slice_index < 3; ++slice_index)
    counts.push_back(wide.pieces(slice_index)[0].count);
  EXPECT_EQ(counts, (std::vector<std::int64_t>{64, 64, 42}));
}

TEST(FlatLayoutDeathTest, RefusesABufferOfAnotherSize) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const FlatLayout layout(unit_of({{10}}), 2);
  std::vector<float> memory(64);
  const Tensor small{memory.data(), DType::kF32, 64};
  EXPECT_DEATH(layout.slice(small, 0), "64 elements where the layout has 128");
  EXPECT_DEATH(layout.views(small), "64 elements where the layout has 128");
  EXPECT_DEATH(FlatLayout(unit_of({{10}}), 0), "a unit in 0 slices");
}

}  // namespace
}  // namespace sherd::sharding
