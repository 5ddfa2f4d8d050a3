#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "kernels/cpu/matmul/schedule.h"

namespace sherd::kernels::cpu {
namespace {

struct Sizes {
  std::int64_t blocks, packs, groups;
};
const Sizes kSizes[] = {{1, 1, 1},   {1, 3, 5}, {2, 1, 1}, {2, 4, 3},
                        {3, 12, 16}, {5, 2, 7}, {7, 5, 1}, {4, 1, 2}};

std::int64_t place_of(const MatmulSchedule& schedule, const MatmulTask& wanted) {
  for (std::int64_t i = 0; i < schedule.num_tasks(); ++i) {
    const MatmulTask task = schedule.task(i);
    if (std::tie(task.packs, task.block, task.part) ==
        std::tie(wanted.packs, wanted.block, wanted.part)) {
      return i;
    }
  }
  return -1;
}

TEST(MatmulSchedule, HasEveryPartAndEveryGroupOfEveryBlockOnce) {
  for (const Sizes& sizes : kSizes) {
    const MatmulSchedule schedule(sizes.blocks, sizes.packs, sizes.groups);
    std::set<std::tuple<bool, std::int64_t, std::int64_t>> seen;
    for (std::int64_t i = 0; i < schedule.num_tasks(); ++i) {
      const MatmulTask task = schedule.task(i);
      EXPECT_TRUE(seen.emplace(task.packs, task.block, task.part).second);
      EXPECT_GE(task.block, 0);
      EXPECT_LT(task.block, sizes.blocks);
      EXPECT_GE(task.part, 0);
      EXPECT_LT(task.part, task.packs ? sizes.packs : sizes.groups);
    }
    EXPECT_EQ(static_cast<std::int64_t>(seen.size()), sizes.blocks * (sizes.packs + sizes.groups));
  }
}

TEST(MatmulSchedule, ATaskNeedsWhatItReadsAndThatNobodyReadsWhatItWritesAndNothingThatComesLater) {
  for (const Sizes& sizes : kSizes) {
    const MatmulSchedule schedule(sizes.blocks, sizes.packs, sizes.groups);
    for (std::int64_t i = 0; i < schedule.num_tasks(); ++i) {
      const MatmulTask task = schedule.task(i);
      for (const Before before : {Before::kNothing, Before::kSameGroup, Before::kAll}) {
        if (task.block == 0 && before != Before::kNothing) continue;
        const std::int64_t needs = schedule.needs(task, before);
        SCOPED_TRACE(testing::Message()
                     << sizes.blocks << " blocks, task " << i << " needs " << needs);
        EXPECT_LE(needs, i);
        const auto is_needed = [&](const MatmulTask& other) {
          return place_of(schedule, other) < needs;
        };
        if (task.packs) {  // the buffer's readers two blocks before
          for (std::int64_t g = 0; task.block >= 2 && g < sizes.groups; ++g) {
            EXPECT_TRUE(is_needed({false, task.block - 2, g}));
          }
          continue;
        }
        for (std::int64_t part = 0; part < sizes.packs; ++part) {
          EXPECT_TRUE(is_needed({true, task.block, part}));
        }
        if (before == Before::kNothing) continue;
        EXPECT_TRUE(is_needed({false, task.block - 1, task.part}));
        for (std::int64_t g = 0; before == Before::kAll && g < sizes.groups; ++g) {
          EXPECT_TRUE(is_needed({false, task.block - 1, g}));
        }
      }
    }
  }
}

// The point of the order: where a block is packed and where it begins, the last groups of the block before may still
// be under way.
TEST(MatmulSchedule, ThreadsDontMeetBetweenBlocks) {
  const std::int64_t groups = 16;
  const MatmulSchedule schedule(4, 12, groups);
  for (std::int64_t block = 1; block < 4; ++block) {
    const std::int64_t last = place_of(schedule, {false, block - 1, groups - 1});
    EXPECT_LE(schedule.needs({true, block, 0}, Before::kNothing), last);
    EXPECT_LE(schedule.needs({false, block, 0}, Before::kNothing), last);
    EXPECT_LE(schedule.needs({false, block, 0}, Before::kSameGroup), last);
    EXPECT_LE(place_of(schedule, {true, block, 11}), last);
  }
}

TEST(RowGroups, CoverTheRowsOnceInOrderAndAreSmallAtTheEndWhereThreadsAreSeveral) {
  for (const std::int64_t threads : {1, 2, 3, 8, 64}) {
    for (const std::int64_t most : {1, 4, 6}) {
      for (std::int64_t tiles = 1; tiles < 200; ++tiles) {
        const RowGroups groups(tiles, most, threads);
        EXPECT_EQ(groups.begin(0), 0);
        EXPECT_EQ(groups.begin(groups.count()), tiles);
        for (std::int64_t g = 0; g < groups.count(); ++g) {
          EXPECT_LT(groups.begin(g), groups.begin(g + 1));
          EXPECT_LE(groups.begin(g + 1) - groups.begin(g), most);
        }
        if (threads == 1) continue;
        EXPECT_GE(groups.count(), std::min(tiles, 2 * threads))
            << tiles << " tiles, " << threads << " threads";
        if (tiles < 4 || most < 4) continue;
        EXPECT_LE(tiles - groups.begin(groups.count() - 1), most / 3) << tiles;
      }
    }
  }
}

}  // namespace
}  // namespace sherd::kernels::cpu
