/// One row for every parameter: how tensor ranks cut it, along which axes its gradient is summed and its state is
/// sharded, and who counts it in norms: what reductions, norms, optimizers and checkpoints obey
/// (`sherd plan --parameters`).
#pragma once

#include <string>

#include "engine/plan/planned_recipe.h"

namespace sherd::engine {

/// Blocks that are alike have one row each for all of them.
std::string parameter_rows(const PlannedRecipe& planned);

}  // namespace sherd::engine
