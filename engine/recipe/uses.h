/// Keys that only have an effect together with others: the condition in words, and as a function of
/// the recipe.
///
/// The words follow the key's help ("Used with sample_tokens."). If a recipe sets such a key
/// without effect, the run prints a note. A key that isn't in the table always has an effect or is
/// refused; tests/engine/keys tests each of them.
#pragma once

#include <string_view>

#include "engine/recipe/resolution.h"

namespace sherd::engine {

struct Use {
  std::string_view key;
  std::string_view when;  ///< follows "used": "with format: bin"
  bool (*holds)(const Recipe&);
};

/// Null for keys that are always used.
const Use* use_of(std::string_view key);

/// Whether there is validation data.
bool validates(const Recipe& recipe);
/// Whether there is some without data.validation_sets.
bool validates_by_path(const Recipe& recipe);

/// Adds a note for each unused key that the user set to a value other than its default.
void note_unused(Resolution& recipe);

}  // namespace sherd::engine
