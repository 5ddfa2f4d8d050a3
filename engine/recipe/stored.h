/// Recipes as stored in checkpoints: every value as text.
///
/// Values are compared as the text that `format_value` prints. The first checkpoints contained
/// ordinals of enumerations for a few keys; a fixed table converts those to text.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "engine/recipe/recipe.h"

namespace sherd::engine {

using RecipeTexts = std::map<std::string, std::string>;  ///< by key

/// The keys that a resume compares (all except the free ones).
RecipeTexts compared_values(const Recipe& recipe);

/// The values of a recipe printed by `ResolvedRecipe::yaml`, possibly by another version of this
/// program. Unknown keys are omitted; values that this version refuses are kept as written. Nothing
/// if the text isn't a recipe.
RecipeTexts printed_values(const std::string& yaml);

/// The default of a key, used for recipes older than the key. Nothing for keys without a default.
std::optional<std::string> default_value(std::string_view key);

/// The text for an ordinal in an old checkpoint. Nothing if the key had no ordinals, or fewer.
std::optional<std::string> text_of_ordinal(std::string_view key, std::int64_t ordinal);

}  // namespace sherd::engine
