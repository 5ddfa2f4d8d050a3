/// One row for every parameter: how tensor ranks split it, along which axes its gradient is summed
/// and its state is sharded, and which rank counts it in norms. Reductions, norms, optimizers and
/// checkpoints follow this table (`sherd plan --parameters`).
#pragma once

#include <string>

#include "engine/plan/planned_recipe.h"

namespace sherd::engine {

/// Identical blocks share their rows.
std::string parameter_rows(const PlannedRecipe& planned);

}  // namespace sherd::engine
