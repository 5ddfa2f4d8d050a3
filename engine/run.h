/// From a resolved recipe to a finished run.
#pragma once

#include "engine/device.h"
#include "engine/recipe.h"

namespace sherd::engine {

/// Trains as the recipe says; returns when the run has ended well, throws a sherd::Error otherwise.
void train(const ResolvedRecipe& recipe);
/// On `device` instead of what the recipe names; for tests.
void train(const ResolvedRecipe& recipe, const Device& device);

}  // namespace sherd::engine
