#include "core/box.h"

#include <gtest/gtest.h>

namespace sherd {
namespace {

std::vector<BoxRun> runs(const std::vector<Box>& boxes, std::int64_t columns, std::int64_t first,
                         std::int64_t count) {
  std::vector<BoxRun> all;
  for_each_run(boxes, columns, first, count, [&](const BoxRun& run) { all.push_back(run); });
  return all;
}

TEST(Boxes, OfAllColumnsAreOneRunEach) {
  EXPECT_EQ(runs({{2, 3, 0, 5}, {8, 1, 0, 5}}, 5, 0, 20),
            (std::vector<BoxRun>{{10, 0, 15}, {40, 15, 5}}));
}

TEST(Boxes, OfSomeColumnsAreARunForEachRow) {
  EXPECT_EQ(runs({{1, 2, 3, 2}}, 5, 0, 4), (std::vector<BoxRun>{{8, 0, 2}, {13, 2, 2}}));
}

TEST(Boxes, OfPartOfAPartBeginAndEndInsideRows) {
  EXPECT_EQ(runs({{0, 2, 1, 3}, {4, 1, 1, 3}}, 6, 2, 5),
            (std::vector<BoxRun>{{3, 2, 1}, {7, 3, 3}, {25, 6, 1}}));
  EXPECT_EQ(runs({{0, 2, 0, 6}}, 6, 5, 2), (std::vector<BoxRun>{{5, 5, 2}}));
  EXPECT_EQ(runs({{0, 2, 0, 6}}, 6, 3, 0), (std::vector<BoxRun>{}));
}

TEST(BoxesDeathTest, BeyondWhatThereIsAreOurBug) {
  EXPECT_DEATH(runs({{0, 2, 0, 6}}, 6, 0, 13), "a part of 12");
  EXPECT_DEATH(runs({{0, 2, 3, 4}}, 6, 0, 1), "columns");
}

}  // namespace
}  // namespace sherd
