/// A recipe in the words of the layers below, made once for everything that is planned of it.
#pragma once

#include "engine/launch/device.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {

struct PlannedRecipe {
  /// On the device that the recipe names, whether or not this machine has it.
  PlannedRecipe(const Recipe& values);  // NOLINT: a recipe is what is planned
  PlannedRecipe(const Recipe& values, const DeviceTraits& traits);

  Recipe recipe;
  TrainingOptions options;
  sharding::Mesh mesh;
  DeviceTraits device;
};

}  // namespace sherd::engine
