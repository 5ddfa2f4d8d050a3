/// Steps and epochs of a run, once its data are open.
#pragma once

#include <string>

#include "engine/data/batcher.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {

/// "3 epochs of 1234 sequences: 232 steps of 16, the last one of 6", or, if the recipe counts
/// steps, "300 steps of 16: 3.9 epochs of 1234 sequences".
std::string epochs_line(const Recipe& recipe, const data::Batcher& batcher);

}  // namespace sherd::engine
