/// Shows a recipe's data as a run sees them: `sherd data`.
#pragma once

#include <cstdint>
#include <string>

#include "engine/recipe/recipe.h"

namespace sherd::engine {

struct ShowData {
  std::int64_t samples = 3;  ///< sequences of the first steps
  bool colour = false;       ///< trained tokens are green; else between « and »
};

/// Files, documents, steps and epochs, how full sequences are, and the share of tokens with a loss.
/// Then sequences as text, with the lengths of their documents.
/// Errors   DataError: as in a run
std::string shown_data(const ResolvedRecipe& resolved, const ShowData& show);

}  // namespace sherd::engine
