/// How a recipe's pipeline spends a step: who has which layers, how many micro-batches each rank keeps, how
/// long it waits, and a picture. Times are estimated from the multiplications in each part, so only
/// shares of a step are given.
#pragma once

#include <string>

#include "engine/plan/planned_recipe.h"

namespace sherd::engine {

/// For a terminal, 80 columns wide; "" for a recipe without a pipeline.
std::string pipeline_text(const PlannedRecipe& planned);
/// The same as a <section> of the plan page, whose style has schedule::kPictureStyle.
std::string pipeline_section(const PlannedRecipe& planned);

}  // namespace sherd::engine
