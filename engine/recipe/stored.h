/// Recipes as checkpoints keep them: every value as text.
///
/// A value is compared as the text that `format_value` prints. Checkpoints of the first programs held
/// ordinals of enumerations for a few keys; a frozen table turns those into text.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "engine/recipe/recipe.h"

namespace sherd::engine {

using RecipeTexts = std::map<std::string, std::string>;  ///< by key

/// The keys that a resume compares (everything but the free ones).
RecipeTexts compared_values(const Recipe& recipe);

/// The values of a recipe that `ResolvedRecipe::yaml` printed, perhaps by another version of this
/// program: keys that this one doesn't know are left out, values that it refuses stay as they were
/// written. Nothing if the text isn't a recipe.
RecipeTexts printed_values(const std::string& yaml);

/// What a key was before it existed: its default. Nothing for keys without one.
std::optional<std::string> default_value(std::string_view key);

/// The text of an ordinal in an old checkpoint; nothing if the key never had ordinals or had fewer.
std::optional<std::string> text_of_ordinal(std::string_view key, std::int64_t ordinal);

}  // namespace sherd::engine
