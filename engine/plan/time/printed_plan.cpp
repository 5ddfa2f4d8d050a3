#include "engine/plan/time/printed_plan.h"

#include "engine/plan/time/step_comparison.h"

namespace sherd::engine {

std::string printed_plan(const LargestSegment& planned, const PlanReport& report) {
  std::string text;
  if (!planned.text.empty()) text += planned.text + "\n";
  text += plan_text(report);
  if (const auto step = predicted_step(planned.recipe.values)) {
    text += "\n" + predicted_step_text(*step);
  }
  return text;
}

}  // namespace sherd::engine
