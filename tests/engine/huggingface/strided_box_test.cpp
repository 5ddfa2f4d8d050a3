// Boxes: every element once, whatever range is asked for.
#include "engine/huggingface/strided_box.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace sherd::huggingface {
namespace {

using Pairs = std::map<std::int64_t, std::int64_t>;  // to -> from

// By the definition: all indices of the axes, one after the other.
Pairs all_elements(const StridedBox& box) {
  Pairs pairs;
  for (std::int64_t number = 0; number < box.numel(); ++number) {
    std::int64_t rest = number, to = box.to, from = box.from;
    for (std::size_t axis = box.axes.size(); axis-- > 0;) {
      const std::int64_t i = rest % box.axes[axis].count;
      rest /= box.axes[axis].count;
      to += i * box.axes[axis].to_stride;
      from += i * box.axes[axis].from_stride;
    }
    EXPECT_TRUE(pairs.emplace(to, from).second);
  }
  return pairs;
}

Pairs elements_of_runs(const StridedBox& box, std::int64_t begin, std::int64_t end,
                       std::int64_t longest) {
  Pairs pairs;
  for_each_run(box, begin, end, longest, [&](const huggingface::Run& run) {
    EXPECT_GE(run.count, 1);
    EXPECT_LE(run.count, longest);
    for (std::int64_t i = 0; i < run.count; ++i) {
      EXPECT_TRUE(pairs.emplace(run.to + i * run.to_stride, run.from + i).second);
    }
  });
  return pairs;
}

const std::vector<StridedBox> kBoxes = {
    {5, 2, {{17, 1, 1}}},                         // rows, one after the other
    {0, 0, {{6, 7, 1}, {7, 1, 6}}},               // a transposed matrix
    {10, 3, {{6, 7, 2}, {1, 1, 1}, {5, 1, 12}}},  // with gaps
    {4, 20, {{3, 16, 48}, {8, 1, 1}}},            // half of each head
    {0, 0, {{3, 16, 16}, {2, 8, 1}, {4, 2, 2}, {2, 1, 8}}},
    {0, 0, {{1, 4, 1}, {4, 1, 1}}},
    {0, 0, {{0, 4, 1}, {4, 1, 1}}},
};

TEST(StridedBox, GivesEveryElementOfARangeOnceAndNoOther) {
  for (const StridedBox& box : kBoxes) {
    const Pairs all = all_elements(box);
    for (std::int64_t begin = 0; begin < 70; ++begin) {
      for (std::int64_t end = begin; end < 70; ++end) {
        Pairs expected;
        for (const auto& [to, from] : all) {
          if (to >= begin && to < end) expected.emplace(to, from);
        }
        ASSERT_EQ(elements_of_runs(box, begin, end, 3), expected) << begin << " " << end;
        ASSERT_EQ(elements_of_runs(box, begin, end, 1000), expected) << begin << " " << end;
      }
    }
  }
}

TEST(StridedBox, TurnedOverTwiceIsItself) {
  for (const StridedBox& box : kBoxes) {
    Pairs turned;
    for (const auto& [to, from] : all_elements(box)) turned.emplace(from, to);
    EXPECT_EQ(elements_of_runs(box.inverse(), 0, 1000, 1000), turned);
  }
}

TEST(StridedBox, ReadsATransposedMatrixInAsManyRunsAsItHasRows) {
  const StridedBox box{0, 0, {{60, 70, 1}, {70, 1, 60}}};
  int runs = 0;
  for_each_run(box, 0, 4200, 1000, [&](const huggingface::Run& run) {
    EXPECT_EQ(run.count, 60);
    ++runs;
  });
  EXPECT_EQ(runs, 70);
}

}  // namespace
}  // namespace sherd::huggingface
