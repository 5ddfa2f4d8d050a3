/// What a run says of its groups of parameters.
#pragma once

#include <string>

#include "engine/train/from_recipe.h"

namespace sherd::engine {

/// A line for each group, "group 1 (embedding.*): 1 tensor, 16384 parameters, 0.5 x lr, decay 0" or
/// "..., frozen", and one for the parameters in none. "" without groups.
std::string groups_text(const TrainingOptions& options);

}  // namespace sherd::engine
