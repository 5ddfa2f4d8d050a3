/// A run whose stages have other shapes is planned for the segment that needs the most memory.
#pragma once

#include <string>

#include "engine/recipe/segments.h"

namespace sherd::engine {

struct LargestSegment {
  ResolvedRecipe recipe;
  std::string text;  ///< which one it is; "" if there is one
};

LargestSegment largest_segment(const ResolvedRecipe& recipe);

}  // namespace sherd::engine
