/// Opens the texts of a recipe: what it trains on, and its validation sets.
#pragma once

#include <string>
#include <vector>

#include "engine/data/batcher.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {

/// Whether any of the recipe's texts has separate documents.
bool has_separate_documents(const Recipe& recipe);

struct OpenSources {
  bool only_validate = false;          ///< as in data::DataOptions
  std::vector<char32_t> vocabulary{};  ///< as in data::DataOptions
};

/// data.path, or data.sources, with their held-out parts; then data.validation_sets.
/// Errors   DataError as data::open_dataset; a validation set with a file that is trained on
data::BatchSources open_sources(const Recipe& recipe, const OpenSources& how = {});

}  // namespace sherd::engine
