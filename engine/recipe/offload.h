/// What a recipe keeps on disk, for its rules and for the training.
#pragma once

#include "engine/recipe/recipe.h"
#include "sharding/zero/unit.h"

namespace sherd::engine {

/// Masters are apart from the parameters with 16-bit compute, unless ranks gather them: below stage
/// 3, or where replicas divide the optimizer's state.
sharding::OffloadOptions offload_of(const Recipe& recipe);

}  // namespace sherd::engine
