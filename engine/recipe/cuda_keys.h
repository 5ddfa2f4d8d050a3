/// What a GPU computes.
#pragma once

#include <string_view>

#include "engine/recipe/recipe.h"

namespace sherd::engine {

/// The first key that asks for what no CUDA kernel computes; "" if none does.
std::string_view key_without_cuda(const Recipe& recipe);

}  // namespace sherd::engine
