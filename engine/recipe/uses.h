/// Keys that do something only together with others: when, in words and as a function of the recipe.
///
/// The words stand behind the key's help ("Used with sample_tokens."). A run whose recipe sets such a key
/// where it does nothing says so in a line. A key that isn't in the table always does something, or is
/// refused; tests/engine/keys tries each of them.
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

/// Whether there is text to validate with.
bool validates(const Recipe& recipe);

/// A note for each key that a person set, to something else than it would be without, and that isn't used.
void note_unused(Resolution& recipe);

}  // namespace sherd::engine
