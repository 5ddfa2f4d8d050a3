/// What a recipe's data look like to a run: `sherd data`.
#pragma once

#include <cstdint>
#include <string>

#include "engine/recipe/recipe.h"

namespace sherd::engine {

struct ShowData {
  std::int64_t samples = 3;  ///< sequences of the first steps
  bool colour = false;       ///< what is trained on is green; else it stands between « and »
};

/// Files, documents, steps and epochs, how full sequences are and which share of tokens has a loss; then sequences as text,
/// with their documents' lengths.
/// Errors   DataError: as a run would end
std::string shown_data(const Recipe& recipe, const ShowData& show);

}  // namespace sherd::engine
