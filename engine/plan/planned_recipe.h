/// A recipe converted to the types of the lower layers, once for all plans.
#pragma once

#include "engine/launch/device.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {

struct PlannedRecipe {
  /// For the device that the recipe names, whether or not this machine has it.
  PlannedRecipe(const Recipe& values);  // NOLINT: a recipe is what is planned
  PlannedRecipe(const Recipe& values, const DeviceTraits& traits);

  Recipe recipe;
  TrainingOptions options;
  sharding::Mesh mesh;
  DeviceTraits device;
};

}  // namespace sherd::engine
