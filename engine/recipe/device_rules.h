/// Rules about what a device can't compute. If the recipe names its device, they are checked with
/// all other rules; with run.device: auto, once the device is known.
#pragma once

#include "core/stream.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {

class Resolution;

/// Reports what a GPU can't do, if the recipe names one.
void check_device(Resolution& recipe);
/// Errors   RecipeErrors: what the recipe asks for and `device` can't do.
void require_possible_on(DeviceKind device, const Recipe& recipe);
/// The same of the model alone, which is used and not trained.
void require_model_possible_on(DeviceKind device, const Recipe& recipe);

}  // namespace sherd::engine
