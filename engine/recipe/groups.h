/// Which parameters belong to which of optimizer.groups: the first one with a pattern for the name.
#pragma once

#include <string>
#include <vector>

#include "engine/recipe/lists.h"

namespace sherd::engine {

/// Index of a parameter's group; -1: none.
int group_of(const std::vector<ParameterGroup>& groups, const std::string& parameter);
bool is_frozen(const std::vector<ParameterGroup>& groups, const std::string& parameter);
bool any_frozen(const std::vector<ParameterGroup>& groups);

}  // namespace sherd::engine
