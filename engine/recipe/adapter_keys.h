/// Adapters of a frozen model: block `adapter` of a recipe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/recipe/choices.h"

namespace sherd::engine {

struct AdapterKeys {
  AdapterChoice type = AdapterChoice::kNone;
  std::int64_t rank = 0;
  double alpha = 0;
  bool rslora = false;
  BaseDType base_dtype = BaseDType::kParamDType;
  double dropout = 0;
  double lora_plus_ratio = 0;  ///< rate of B over that of A
  /// Of our own names (engine/model/adapter.h), once the recipe is resolved.
  std::vector<std::string> targets, modules_to_save;
};

}  // namespace sherd::engine
