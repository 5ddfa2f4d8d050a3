/// Rules about what a device can't compute. A recipe that names its device is checked with all other rules; one that
/// leaves it open (run.device: auto), when the device is known.
#pragma once

#include "core/stream.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {

/// Errors   RecipeErrors: what `device` can't do of what the recipe asks for.
void require_possible_on(DeviceKind device, const Recipe& recipe);

}  // namespace sherd::engine
