/// `sherd train`, in one process or as one of several that mpirun has started.
#pragma once

#include "engine/recipe/recipe.h"

namespace sherd::main {

/// Returns the exit code. Alone, errors are thrown. Among other processes they are printed here, each
/// once: what several say alike, the first of them says; what follows from another's failure, the first
/// that is alive.
int train(const engine::RecipeRequest& request);

}  // namespace sherd::main
