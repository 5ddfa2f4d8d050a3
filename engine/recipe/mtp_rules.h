/// Rules of multi-token prediction (block `mtp`).
#pragma once

#include "engine/recipe/resolution.h"

namespace sherd::engine {

/// Part of check_training.
void check_mtp(Resolution& recipe);

}  // namespace sherd::engine
