#include "sharding/processes/group_numbers.h"

#include <algorithm>

#include "core/error.h"

namespace sherd::sharding {

std::uint32_t GroupNumbers::number_of(const Group& group, std::uint32_t num_numbers) {
  const auto number =
      static_cast<std::uint32_t>(std::hash<std::string>{}(group.name) % num_numbers);
  std::lock_guard lock(mutex_);
  auto& groups = groups_[{group.world_rank(), number}];
  for (const auto& [name, ranks] : groups) {
    const auto in_common = std::ranges::count_if(
        group.ranks, [&](int rank) { return std::ranges::find(ranks, rank) != ranks.end(); });
    SHERD_CHECK(name == group.name || in_common < 2,
                "groups \"{}\" and \"{}\" have the same number", group.name, name);
  }
  groups.emplace(group.name, group.ranks);
  return number;
}

}  // namespace sherd::sharding
