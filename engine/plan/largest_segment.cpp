#include "engine/plan/largest_segment.h"

#include "engine/plan/world_plan.h"

namespace sherd::engine {

LargestSegment largest_segment(const ResolvedRecipe& recipe) {
  const std::vector<Segment> segments = segments_of(recipe);
  if (segments.size() == 1) return {segments[0].recipe, ""};
  std::int64_t most = -1;
  const Segment* largest = nullptr;
  for (const Segment& segment : segments) {
    const std::int64_t bytes =
        plan_world(segment.recipe.values, PlanDetail::kSums).all_arenas_bytes();
    if (bytes <= most) continue;
    most = bytes;
    largest = &segment;
  }
  return {largest->recipe,
          "planned for the stage that needs the most memory: " + largest->text(recipe.values)};
}

}  // namespace sherd::engine
