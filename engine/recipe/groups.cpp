#include "engine/recipe/groups.h"

#include <fnmatch.h>

#include <algorithm>

namespace sherd::engine {

int group_of(const std::vector<ParameterGroup>& groups, const std::string& parameter) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const bool has = std::ranges::any_of(groups[i].parameters, [&](const std::string& pattern) {
      return fnmatch(pattern.c_str(), parameter.c_str(), 0) == 0;
    });
    if (has) return static_cast<int>(i);
  }
  return -1;
}

bool is_frozen(const std::vector<ParameterGroup>& groups, const std::string& parameter) {
  const int group = group_of(groups, parameter);
  return group >= 0 && groups[static_cast<std::size_t>(group)].frozen;
}

bool any_frozen(const std::vector<ParameterGroup>& groups) {
  return std::ranges::any_of(groups, &ParameterGroup::frozen);
}

}  // namespace sherd::engine
