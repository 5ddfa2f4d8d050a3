/// Another value for every key of a recipe that a resumed run compares, and what the comparison then finds.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace sherd::engine {

using Keys = std::set<std::string>;

struct Change {
  std::vector<std::string> sets;  ///< the key first
  Keys refused, changed;
};

/// By key: it is set to another value, in tests/engine/recipe's kTinyRecipe, with all that follows.
const std::map<std::string, Change>& changed_keys();

}  // namespace sherd::engine
