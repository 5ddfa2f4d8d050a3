/// Rules of compressed sums over replicas (blocks `powersgd` and `dgc`).
#pragma once

#include "engine/recipe/resolution.h"

namespace sherd::engine {

/// Part of check_training.
void check_compression(Resolution& recipe);

}  // namespace sherd::engine
