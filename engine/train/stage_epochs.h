/// Stages whose length is given in epochs of a source (data.stages[].epochs).
///
///   steps    the fewest whole steps in which the stage uses epochs * W sequences of the source, of
///            W in an epoch; W is that of the stage's sequence length
#pragma once

#include "engine/recipe/recipe.h"

namespace sherd::engine {

/// The same recipe with these stages in steps. The data are opened once for each such stage; a
/// recipe without any is returned as it is, and nothing is opened.
/// Errors   as open_batches; UsageError if a stage doesn't use its source; RecipeErrors
ResolvedRecipe with_stage_steps(const ResolvedRecipe& recipe);

}  // namespace sherd::engine
