/// What a run says of its data, once they are open.
#pragma once

#include <string>

#include "engine/data/batcher.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {

/// "3 epochs of 1234 sequences: 232 steps of 16, the last one of 6", or, if the recipe counts
/// steps, "300 steps of 16: 3.9 epochs of 1234 sequences".
std::string epochs_line(const Recipe& recipe, const data::Batcher& batcher);

/// What each text has. Of several sources also, for each stage, their sequences in a block of
/// 1,024, and for each source its sequences, tokens and epochs in the whole run.
std::string data_lines(const Recipe& recipe, const data::Batcher& batcher);

/// Errors   DataError if a source would be repeated more often than its max_epochs
void require_few_epochs(const data::Batcher& batcher, std::int64_t max_steps);

}  // namespace sherd::engine
