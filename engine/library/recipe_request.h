/// What a user's recipe holds, and the recipe that it means.
#pragma once

#include "engine/recipe/recipe.h"
#include "sherd/recipe.h"

namespace sherd::v0 {

struct Recipe::Request {
  engine::RecipeRequest asked;
};

/// `reads_data`: engine/recipe/recipe.h.
/// Errors   engine::RecipeErrors
engine::ResolvedRecipe resolved(const Recipe& recipe, bool reads_data);

}  // namespace sherd::v0
