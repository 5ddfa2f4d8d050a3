/// Whether two recipes describe the same model, however they spell it.
///
/// Patterns of layers are compared layer by layer; a scale of 0 is what it stands for; keys that others make idle
/// (a window of no layer, factors of a scaling that isn't there) don't count; what kernels take as f32 is compared
/// as f32.
#pragma once

#include <string>
#include <vector>

#include "engine/recipe/recipe.h"

namespace sherd::engine {

struct ModelDifference {
  std::string key;  ///< "model.norm"
  std::string a, b;
};

/// In the order of the field table; keys that are the run's own are left out (model_from.h).
std::vector<ModelDifference> differences(const Recipe& a, const Recipe& b);

/// `b` has a bias where `a` has none: the same model if it is zero.
bool is_missing_bias(const ModelDifference& difference);

}  // namespace sherd::engine
