/// How a recipe's pipeline spends a step: each rank's layers, the micro-batches that it keeps, its
/// waiting time, and a picture. Times are estimated from the multiplications in each part, so only
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
