// In which launches grouped products cover the rows of a round.
#include "kernels/device_common/grouped_rows.h"

#include <gtest/gtest.h>

#include <set>

namespace sherd::kernels::device_common {
namespace {

TEST(GroupedRows, AreOfFewSizesOfWhichAThirdAtMostIsIdle) {
  std::set<std::int64_t> sizes;
  for (std::int64_t count = 1; count <= 5000; ++count) {
    const std::int64_t least = least_grouped_rows(count), most = most_grouped_rows(count);
    EXPECT_TRUE(least >= count && 2 * least <= 3 * count) << count << ": " << least;
    EXPECT_TRUE(most <= count && 3 * most >= 2 * count) << count << ": " << most;
    sizes.insert({least, most});
  }
  EXPECT_EQ(sizes.size(), 25u);
}

struct Launch {
  GroupedRows rows;
  std::vector<std::int32_t> offsets;
};

// Expert e of `experts` has counts[e] rows of each source.
std::vector<Launch> launches(const std::vector<std::vector<std::int64_t>>& sources,
                             std::int64_t buffer_first, std::int64_t buffer_rows) {
  std::vector<ExpertPiece> pieces;
  std::int64_t first = buffer_first;
  for (std::size_t source = 0; source < sources.size(); ++source) {
    for (std::size_t e = 0; e < sources[source].size(); ++e) {
      const std::int64_t count = sources[source][e];
      if (count == 0) continue;
      pieces.push_back({static_cast<int>(e), static_cast<int>(source), first, count, true});
      first += count;
    }
  }
  std::vector<Launch> all;
  const auto experts = std::ssize(sources[0]);
  for_each_grouped_launch(expert_runs(pieces), buffer_first, buffer_rows,
                          [&](std::span<const ExpertRun> runs, const GroupedRows& rows) {
                            const GroupOffsets offsets =
                                group_offsets(runs, rows, buffer_first, experts);
                            all.push_back({rows, {offsets.begin, offsets.begin + experts}});
                          });
  return all;
}

using Offsets = std::vector<std::int32_t>;

TEST(GroupedRows, BeginWhereTheNextExpertsDoIfAnExpertHasNone) {
  const std::vector<Launch> all = launches({{0, 3, 0, 10, 0}}, 100, 64);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].rows.first, 0);
  EXPECT_EQ(all[0].rows.count, 13);
  EXPECT_EQ(all[0].rows.rows, 16);
  EXPECT_EQ(all[0].offsets, (Offsets{0, 0, 3, 3, 13}));
}

// 13 rows don't fit as 16: 12 of them, and the last one.
TEST(GroupedRows, EndWithTheBuffer) {
  const std::vector<Launch> all = launches({{5, 8}}, 0, 13);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].rows.rows, 12);
  EXPECT_EQ(all[0].offsets, (Offsets{0, 5}));
  EXPECT_EQ(all[1].rows.first, 12);
  EXPECT_EQ(all[1].rows.rows, 1);
  EXPECT_EQ(all[1].offsets, (Offsets{0, 0}));
}

// What the first source's launch writes after its rows, the second's writes again.
TEST(GroupedRows, OfEachSourceHaveALaunchOfTheirOwn) {
  const std::vector<Launch> all = launches({{2, 3}, {4, 1}}, 0, 20);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].rows.rows, 6);
  EXPECT_EQ(all[0].offsets, (Offsets{0, 2}));
  EXPECT_EQ(all[1].rows.first, 5);
  EXPECT_EQ(all[1].rows.rows, 6);
  EXPECT_EQ(all[1].offsets, (Offsets{0, 4}));
}

TEST(GroupedRows, AreEachRowsOnceAndInsideTheBuffer) {
  for (std::int64_t buffer = 1; buffer < 200; ++buffer) {
    for (std::int64_t own = 1; own <= buffer; own += 3) {
      const std::int64_t first = own / 3, second = own - first;
      std::int64_t next = 0;
      for (const Launch& launch : launches({{first, second}, {1, buffer - own}}, 7, buffer + 1)) {
        EXPECT_EQ(launch.rows.first, next);
        EXPECT_GE(launch.rows.rows, launch.rows.count);
        EXPECT_LE(next + launch.rows.rows, buffer + 1);
        next += launch.rows.count;
      }
      EXPECT_EQ(next, buffer + 1);
    }
  }
}

// cuDNN multiplies no narrower rows than 16 bytes, and f32 as TF32.
TEST(GroupedRows, AreOf16BitsInWholePacks) {
  ExpertsShape shape{.width = 24, .ffn_width = 16, .grouped = true};
  EXPECT_TRUE(groups_products(shape, DType::kBF16));
  EXPECT_TRUE(groups_products(shape, DType::kF16));
  EXPECT_FALSE(groups_products(shape, DType::kF32));
  shape.ffn_width = 20;
  EXPECT_FALSE(groups_products(shape, DType::kBF16));
  shape = {.width = 24, .ffn_width = 16};
  EXPECT_FALSE(groups_products(shape, DType::kBF16));
}

}  // namespace
}  // namespace sherd::kernels::device_common
