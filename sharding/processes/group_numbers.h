/// Numbers of groups in the tags of messages, computed equally on every process without communication.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "sharding/comm/rendezvous.h"

namespace sherd::sharding {

/// For the groups of a process's ranks. Thread-safe.
class GroupNumbers {
 public:
  /// A number below `num_numbers`, of the group's name. Groups with two ranks in common must have
  /// different ones, which this checks; with one rank in common they needn't, as messages are matched
  /// by their two ranks, too.
  std::uint32_t number_of(const Group& group, std::uint32_t num_numbers);

 private:
  std::mutex mutex_;
  // By rank and number: the groups' names and ranks.
  std::map<std::pair<int, std::uint32_t>, std::map<std::string, std::vector<int>>> groups_;
};

}  // namespace sherd::sharding
