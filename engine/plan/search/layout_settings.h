/// A layout (candidates.h) as changes of a recipe, with as few settings as possible.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/planned_recipe.h"
#include "engine/plan/search/candidates.h"

namespace sherd::engine {

struct LayoutSettings {
  std::vector<std::pair<std::string, std::string>> settings;  ///< key and value
  ResolvedRecipe recipe;
};

/// Where a search puts the optimizer's state: on disk, or for GPUs on the host.
OffloadDevice offload_device(const Recipe& recipe);

/// The recipe in this layout, by all of its rules; keys whose value follows from others' aren't
/// set. `offload`: the optimizer's state is elsewhere. Nothing if a rule refuses it.
std::optional<LayoutSettings> settings_of(const ResolvedRecipe& recipe, const Layout& layout,
                                          bool offload);
/// The same with updates by the host's cores, where state is on the host of GPUs; else nothing.
std::optional<LayoutSettings> updated_by_cores(const LayoutSettings& settings);

}  // namespace sherd::engine
