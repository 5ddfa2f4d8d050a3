#include "sharding/comm/machine_relays.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <utility>

namespace sherd::sharding {
namespace {

Group group_of_ranks(std::vector<int> ranks) {
  return {.name = "gather", .ranks = std::move(ranks)};
}
std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Which slices each member has once owners have sent theirs, and once relays have passed on what they got;
/// and how often a slice has crossed from machine to machine.
struct Played {
  std::vector<std::set<int>> first, then;
  int crossings = 0;
};
Played play(const MachineRelays& relays, int size) {
  Played played{std::vector<std::set<int>>(static_cast<std::size_t>(size)), {}};
  for (int owner = 0; owner < size; ++owner) {
    for (int to = 0; to < size; ++to) {
      if (relays.between(owner, to) != to) continue;
      EXPECT_TRUE(played.first[static_cast<std::size_t>(to)].insert(owner).second);
      played.crossings += relays.are_neighbours(owner, to) ? 0 : 1;
    }
  }
  played.then = played.first;
  for (int owner = 0; owner < size; ++owner) {
    for (int to = 0; to < size; ++to) {
      const int relay = relays.between(owner, to);
      if (relays.are_neighbours(owner, to) || relay == to) continue;
      EXPECT_TRUE(relays.are_neighbours(relay, to));
      EXPECT_TRUE(played.first[static_cast<std::size_t>(relay)].contains(owner));
      EXPECT_TRUE(played.then[static_cast<std::size_t>(to)].insert(owner).second);
    }
  }
  return played;
}

TEST(MachineRelays, EverySliceReachesEveryMemberAndCrossesToEachOtherMachineOnce) {
  struct Case {
    int ranks_per_process;
    std::vector<int> machines;
    int num_machines;
  };
  for (const Case& c : {Case{1, {0, 0, 1, 1}, 2}, Case{1, {0, 0, 0, 3}, 2}, Case{2, {0, 1}, 2},
                        Case{2, {0, 0, 2, 2, 4, 4}, 3}, Case{1, {0, 1, 0, 1, 0}, 2}}) {
    const int size = c.ranks_per_process * static_cast<int>(c.machines.size());
    const MachineRelays relays(group_of_ranks(first_ranks(size)), c.ranks_per_process, c.machines);
    EXPECT_TRUE(relays.any());
    const Played played = play(relays, size);
    for (const std::set<int>& has : played.then) EXPECT_EQ(static_cast<int>(has.size()), size);
    EXPECT_EQ(played.crossings, size * (c.num_machines - 1));
  }
}

TEST(MachineRelays, AMachinesSlicesAreDealtOutToTheMembersOfAnother) {
  const MachineRelays relays(group_of_ranks(first_ranks(8)), 1, {0, 0, 0, 0, 4, 4, 4, 4});
  for (int owner = 0; owner < 4; ++owner) EXPECT_EQ(relays.between(owner, 7), 4 + owner);
}

TEST(MachineRelays, OfOneMachineOrOfOneMemberEachNothingIsPassedOn) {
  EXPECT_FALSE(MachineRelays(group_of_ranks(first_ranks(4)), 1, {}).any());
  EXPECT_FALSE(MachineRelays(group_of_ranks(first_ranks(4)), 2, {0, 0}).any());
  const MachineRelays apart(group_of_ranks(first_ranks(3)), 1, {0, 1, 2});
  EXPECT_FALSE(apart.any());
  EXPECT_EQ(apart.between(0, 2), 2);
  // A group that has one rank of each machine.
  EXPECT_FALSE(MachineRelays(group_of_ranks({1, 3}), 2, {0, 1}).any());
}

}  // namespace
}  // namespace sherd::sharding
