/// Which members forward slices within a machine, so that each slice is sent to each other machine
/// once. Its owner sends it to one member there, its relay. A machine's owners are distributed over
/// the members of another machine, so that all links and members have equal work. Members are
/// numbered as in the group.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <vector>

#include "sharding/comm/rendezvous.h"

namespace sherd::sharding {

class MachineRelays {
 public:
  /// `machines`: the machine of each process; empty: all members are on one machine.
  MachineRelays(const Group& group, int ranks_per_process, const std::vector<int>& machines)
      : machine_(group.ranks.size()), place_(group.ranks.size()) {
    for (std::size_t m = 0; m < machine_.size(); ++m) {
      const auto process = static_cast<std::size_t>(group.ranks[m] / ranks_per_process);
      machine_[m] = machines.empty() ? 0 : machines[process];
      std::vector<int>& here = members_[machine_[m]];
      place_[m] = here.size();
      here.push_back(static_cast<int>(m));
    }
  }

  int size() const { return static_cast<int>(machine_.size()); }
  int machine_of(int member) const { return machine_[static_cast<std::size_t>(member)]; }
  /// The members of each machine, ascending.
  const std::map<int, std::vector<int>>& machines() const { return members_; }
  /// Whether any slice is forwarded: there are several machines, and one has several members.
  bool any() const { return members_.size() > 1 && members_.size() < machine_.size(); }
  /// Whether, in addition, all machines have equally many members. Then each member relays for
  /// equally many owners.
  bool even() const {
    const auto has_as_many = [&](const auto& machine) {
      return machine.second.size() * members_.size() == machine_.size();
    };
    return any() && std::ranges::all_of(members_, has_as_many);
  }
  bool are_neighbours(int a, int b) const { return machine_of(a) == machine_of(b); }
  /// The member on `to`'s machine that gets `owner`'s slice first; `to` itself if the owner is on
  /// that machine.
  int between(int owner, int to) const {
    if (are_neighbours(owner, to)) return to;
    const std::vector<int>& there = members_.at(machine_of(to));
    return there[place_[static_cast<std::size_t>(owner)] % there.size()];
  }

 private:
  std::vector<int> machine_;                 // of each member
  std::vector<std::size_t> place_;           // index among the members of its machine
  std::map<int, std::vector<int>> members_;  // of each machine
};

}  // namespace sherd::sharding
