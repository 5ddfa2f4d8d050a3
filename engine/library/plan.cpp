#include "sherd/plan.h"

#include "engine/library/errors.h"
#include "engine/library/recipe_request.h"
#include "engine/plan/largest_segment.h"
#include "engine/plan/report.h"
#include "engine/plan/time/printed_plan.h"

namespace sherd::v0 {
namespace {

Plan planned(const Recipe& recipe, const PlanOptions& options) {
  const engine::LargestSegment largest =
      engine::largest_segment(resolved(recipe, /*reads_data=*/false));
  const engine::ResolvedRecipe& of = largest.recipe;
  std::optional<std::int64_t> device_memory;
  if (options.device_memory_bytes > 0) device_memory = options.device_memory_bytes;
  const engine::PlanReport report = engine::plan_report(
      of, engine::device_limit(of.values, device_memory), options.ranks_per_machine);
  Plan plan{.num_parameters = report.num_parameters,
            .num_trained_parameters = report.num_trained,
            .worst_rank = report.plan.worst_rank(),
            .needed_bytes = report.needed_bytes,
            .limit_bytes = report.limit.bytes,
            .fits = report.fits(),
            .sent_bytes = report.sent_bytes,
            .json = engine::printed_plan_json(largest, report),
            .text = engine::printed_plan(largest, report)};
  for (int r = 0; r < report.plan.world_size(); ++r) {
    plan.ranks.push_back({report.plan.of(r).arena_bytes(), report.plan.host_of(r).arena_bytes(),
                          report.plan.offloaded_of(r).arena_bytes()});
  }
  const MemoryPlan& worst = report.plan.worst();
  const auto peak = static_cast<std::uint32_t>(worst.peak_phase());
  for (int i = 0; i < kNumPhases; ++i) {
    if (peak != 1u << i) continue;
    for (int c = 0; c < kNumCategories; ++c) {
      const std::int64_t bytes = worst.by_phase()[i][c];
      if (bytes == 0) continue;
      plan.peak_by_category.emplace_back(name_of(static_cast<Category>(c)), bytes);
    }
  }
  return plan;
}

}  // namespace

Plan plan(const Recipe& recipe, const PlanOptions& options) {
  return library::for_user([&] { return planned(recipe, options); });
}

}  // namespace sherd::v0
