/// Whether two recipes describe the same model, even if they write it differently.
///
/// Layer patterns are compared layer by layer. A scale of 0 is replaced by the value it means. Keys
/// without effect (a window that no layer uses, factors of an unused scaling) are ignored. Values
/// that kernels read as f32 are compared as f32.
#pragma once

#include <string>
#include <vector>

#include "engine/recipe/recipe.h"

namespace sherd::engine {

struct ModelDifference {
  std::string key;  ///< "model.norm"
  std::string a, b;
};

/// In the order of the field table, without keys that belong to the run (model_from.h).
std::vector<ModelDifference> differences(const Recipe& a, const Recipe& b);

/// `b` has a bias that `a` lacks: the same model if the bias is zero.
bool is_missing_bias(const ModelDifference& difference);

}  // namespace sherd::engine
