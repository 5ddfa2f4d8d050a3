/// Rules about what a device can't compute. A recipe that names its device is checked with all other rules; one that
/// leaves it open (run.device: auto), when the device is known.
#pragma once

#include "core/stream.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {

class Resolution;

/// Reports what a GPU can't do, if the recipe names one.
void check_device(Resolution& recipe);
/// Errors   RecipeErrors: what `device` can't do of what the recipe asks for.
void require_possible_on(DeviceKind device, const Recipe& recipe);

}  // namespace sherd::engine
