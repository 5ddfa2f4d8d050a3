/// Converts a recipe's model to engine/model's ModelShape.
#pragma once

#include "engine/model/shape.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {

DType dtype_of(FloatType type);

model::ModelShape model_shape(const Recipe& recipe);

}  // namespace sherd::engine
