/// Converts a recipe into the options of the layers below.
#pragma once

#include "engine/data/batcher.h"
#include "engine/recipe/recipe.h"
#include "engine/train/layout/training_options.h"

namespace sherd::engine {

TrainingOptions training_options(const Recipe& recipe);
sharding::Mesh mesh_of(const Recipe& recipe);
data::DataOptions data_options(const Recipe& recipe);
data::BatchShape batch_shape(const Recipe& recipe);

}  // namespace sherd::engine
