#include "sharding/zero/slot_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/sharding/sharding_support.h"

namespace sherd::sharding {
namespace {

std::vector<UnitPlan> stage3_units(int num_blocks, bool tied) {
  std::vector<UnitPlan> units;
  for (const UnitSpec& spec : test::small_units(num_blocks, tied)) {
    units.emplace_back(spec, placement_of(3), Precision{}, Mesh::sharded(2));
  }
  return units;
}

// Embedding, blocks, head, blocks backwards: a micro-step's uses.
std::vector<int> uses_of(int num_blocks, bool tied) {
  std::vector<int> uses;
  for (int unit = 0; unit <= num_blocks; ++unit) uses.push_back(unit);
  uses.push_back(tied ? 0 : num_blocks + 1);
  for (int unit = num_blocks; unit >= 1; --unit) uses.push_back(unit);
  return uses;
}

// Every use played through, none extrapolated. Checks on the way that a unit in use is in its
// slot.
std::vector<std::int64_t> played(const std::vector<UnitPlan>& units, const GatherOptions& options,
                                 const std::vector<int>& uses, int num_micro_steps) {
  std::vector<int> all;
  for (int i = 0; i < num_micro_steps; ++i) all.insert(all.end(), uses.begin(), uses.end());
  SlotSchedule schedule(units, options);
  schedule.plan(all);
  std::vector<std::int64_t> counts(units.size(), 0);
  std::map<int, int> standing;  // unit by slot
  const auto fill = [&] {
    for (const SlotSchedule::Fill& fill : schedule.prefetch()) {
      standing[fill.slot] = fill.unit;
      ++counts[fill.unit];
    }
  };
  for (const int unit : all) {
    schedule.get(unit);
    fill();
    EXPECT_EQ(standing.at(schedule.slot_of(unit)), unit);
    const int slot = schedule.slot_of(unit);
    EXPECT_EQ(schedule.release(unit), slot);
    fill();
  }
  return counts;
}

TEST(SlotSchedule, CountsAStepOfManyMicroStepsAsIfItWerePlayedThrough) {
  for (int num_blocks = 1; num_blocks <= 6; ++num_blocks) {
    for (const bool tied : {false, true}) {
      const auto units = stage3_units(num_blocks, tied);
      const auto uses = uses_of(num_blocks, tied);
      for (const int depth : {0, 1, 2, 3, 4, 7, 13, 64}) {
        for (const bool reshard : {true, false}) {
          const GatherOptions options{depth, reshard};
          for (const int micro_steps : {1, 2, 3, 4, 5, 6, 7, 9, 14, 25, 40}) {
            EXPECT_EQ(count_gathers(units, options, uses, micro_steps),
                      played(units, options, uses, micro_steps))
                << num_blocks << " blocks, tied " << tied << ", depth " << depth << ", reshard "
                << reshard << ", " << micro_steps << " micro-steps";
          }
        }
      }
    }
  }
}

// The least number of fills for one use at a time, by trying every choice (depth 0: no promises).
std::int64_t fewest_fills(const std::vector<int>& uses, std::size_t at, std::vector<int> slots) {
  if (at == uses.size()) return 0;
  if (std::find(slots.begin(), slots.end(), uses[at]) != slots.end()) {
    return fewest_fills(uses, at + 1, slots);
  }
  std::int64_t fewest = 1 << 20;
  for (int& slot : slots) {
    const int before = std::exchange(slot, uses[at]);
    fewest = std::min(fewest, 1 + fewest_fills(uses, at + 1, slots));
    slot = before;
  }
  return fewest;
}

TEST(SlotSchedule, KeepsTheBlockThatIsNeededSooner) {
  const auto units = stage3_units(3, false);
  for (const std::vector<int>& uses : {std::vector{1, 2, 0, 3, 2}, std::vector{2, 1, 0, 3, 2}}) {
    EXPECT_EQ(played(units, {1, true}, uses, 1)[2], 1) << "two slots, block 2 used twice";
  }
}

TEST(SlotSchedule, FillsNoMoreThanTheBestOfAllChoices) {
  constexpr int kBlocks = 4;
  const auto units = stage3_units(kBlocks, false);
  for (const int depth : {0, 1, 2}) {
    const auto counts = played(units, {depth, true}, uses_of(kBlocks, false), 1);
    std::int64_t blocks = 0;
    for (int block = 1; block <= kBlocks; ++block) blocks += counts[block];
    // Promises only bind what is used next anyway, so prefetching costs nothing here.
    const std::vector<int> uses = {1, 2, 3, 4, 4, 3, 2, 1};
    EXPECT_EQ(blocks, fewest_fills(uses, 0, std::vector<int>(depth + 1, -1))) << "depth " << depth;
  }
}

}  // namespace
}  // namespace sherd::sharding
