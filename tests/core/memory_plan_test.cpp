// Places of buffers, compared with every order of stacking them, tried plainly.
#include "core/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/support/random/random_value.h"

namespace sherd {
namespace {

using testing::Random;

constexpr std::int64_t kPage = 4096;

// Buffers that each have phases of their own, so that each is a region; sizes are whole pages.
std::vector<BufferSpec> buffers_of(Random& random, int count) {
  std::vector<BufferSpec> buffers;
  std::vector<std::int64_t> known;
  while (static_cast<int>(buffers.size()) < count) {
    const std::int64_t phases = random.whole(1, (1 << kNumPhases) - 2);
    if (std::ranges::find(known, phases) != known.end()) continue;
    known.push_back(phases);
    buffers.push_back({"a buffer", Category::kActivations, DType::kU8, kPage * random.whole(1, 9),
                       static_cast<Phases>(phases)});
  }
  return buffers;
}

bool meet(const BufferSpec& a, std::int64_t at_a, const BufferSpec& b, std::int64_t at_b) {
  return (a.phases & b.phases) != 0 && at_a < at_b + b.bytes() && at_b < at_a + a.bytes();
}

// What an order needs: each buffer goes to the lowest page where it meets no earlier one.
std::int64_t stacked(const std::vector<BufferSpec>& buffers,
                     const std::vector<std::size_t>& order) {
  std::vector<std::int64_t> at(buffers.size(), 0);
  std::int64_t end = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto is_free = [&](std::int64_t offset) {
      return std::none_of(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(i),
                          [&](std::size_t other) {
                            return meet(buffers[order[i]], offset, buffers[other], at[other]);
                          });
    };
    std::int64_t& place = at[order[i]];
    while (!is_free(place)) place += kPage;
    end = std::max(end, place + buffers[order[i]].bytes());
  }
  return end;
}

TEST(MemoryPlan, OfFewRegionsNeedsWhatTheBestOrderNeeds) {
  Random random(1);
  for (int i = 0; i < 60; ++i) {
    const std::vector<BufferSpec> buffers =
        buffers_of(random, static_cast<int>(random.whole(1, 6)));
    std::vector<std::size_t> order(buffers.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::int64_t least = stacked(buffers, order);
    while (std::next_permutation(order.begin(), order.end())) {
      least = std::min(least, stacked(buffers, order));
    }
    EXPECT_EQ(MemoryPlan(buffers).arena_bytes(), least) << i;
  }
}

TEST(MemoryPlan, KeepsBuffersThatShareAPhaseApart) {
  Random random(2);
  for (int i = 0; i < 60; ++i) {
    const MemoryPlan plan(buffers_of(random, static_cast<int>(random.whole(1, 40))));
    for (const PlannedBuffer& one : plan.buffers()) {
      EXPECT_LE(one.offset + one.spec.bytes(), plan.arena_bytes());
      for (const PlannedBuffer& other : plan.buffers()) {
        if (&one == &other) continue;
        EXPECT_FALSE(meet(one.spec, one.offset, other.spec, other.offset)) << i;
      }
    }
  }
}

}  // namespace
}  // namespace sherd
