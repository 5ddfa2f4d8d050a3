#include "engine/plan/time/printed_plan.h"

#include <nlohmann/json.hpp>

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

std::string printed_plan_json(const LargestSegment& planned, const PlanReport& report) {
  const auto step = predicted_step(planned.recipe.values);
  if (!step) return plan_json(report);
  auto json = nlohmann::ordered_json::parse(plan_json(report));
  json["predicted_step_s"] = step->time.total();
  json["predicted_tokens_per_s"] = step->tokens_per_s();
  return json.dump(2) + "\n";
}

}  // namespace sherd::engine
