#include "engine/plan/planned_recipe.h"

#include "engine/train/from_recipe.h"

namespace sherd::engine {

PlannedRecipe::PlannedRecipe(const Recipe& values) : PlannedRecipe(values, device_traits(values)) {}

PlannedRecipe::PlannedRecipe(const Recipe& values, const DeviceTraits& traits)
    : recipe(values), options(training_options(values)), mesh(mesh_of(values)), device(traits) {}

}  // namespace sherd::engine
