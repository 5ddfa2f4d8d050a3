/// optimizer.groups as the optimizer takes them, with the rates of muP (engine/recipe/mup.h) and
/// LoRA+ (Hayou et al. 2024, arXiv:2402.12354) in them.
#pragma once

#include <vector>

#include "engine/model/shape.h"
#include "engine/recipe/recipe.h"
#include "optim/optimizer.h"

namespace sherd::engine {

/// The recipe's groups, in order. Where muP or LoRA+ changes the rate of only some parameters of a
/// group, a group of these comes before it; parameters that are in no group of the recipe get a
/// group at the end.
std::vector<optim::ParameterGroup> parameter_groups(const Recipe& recipe,
                                                    const model::ModelShape& shape);

}  // namespace sherd::engine
