#include "engine/plan/time/step_comparison.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/launch/device.h"
#include "engine/plan/time/from_recipe.h"

namespace sherd::engine {

std::optional<PredictedStep> predicted_step(const Recipe& recipe) {
  if (device_traits(recipe).kind != DeviceKind::kCpu) return std::nullopt;
  const bool is_modelled = recipe.parallelism.parameter_servers == 0 &&
                           recipe.adapter.type == AdapterChoice::kNone &&
                           !recipe.preference.active() && !recipe.distillation.active();
  if (!is_modelled) return std::nullopt;
  const std::optional<CpuRates> rates = known_cpu_rates();
  if (!rates) return std::nullopt;
  const auto made = cpu_rates_of(*rates, recipe, {});
  const StepShape step = step_shape(recipe);
  return PredictedStep{StepTimes(*made, recipe.world_size()).of(step), step.tokens_per_step()};
}

std::string predicted_step_text(const PredictedStep& step) {
  const double seconds = step.time.total();
  std::string parts;
  for (const auto& [name, of_part] : step.time.parts()) {
    if (of_part < 0.05 * seconds) break;
    parts +=
        fmt::format("{}{} {:.0f} %", parts.empty() ? "" : ", ", name, 100.0 * of_part / seconds);
  }
  return fmt::format("predicted on this processor: {:.4g} s a step, {:.4g} tokens/s ({})\n",
                     seconds, step.tokens_per_s(), parts);
}

std::string StepComparison::text() const {
  return fmt::format("a step took {:.4g} s (median), predicted {:.4g} s: {:.2f} times", measured_s,
                     predicted_s, measured_s / predicted_s);
}

std::string StepComparison::json() const {
  const nlohmann::ordered_json json = {{"predicted_step_s", predicted_s},
                                       {"measured_step_s", measured_s}};
  return json.dump(2) + "\n";
}

std::optional<StepComparison> StepComparison::from_json(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const auto number = [&](const char* key) {
    const auto at = json.find(key);
    return at != json.end() && at->is_number() ? at->get<double>() : 0.0;
  };
  const StepComparison read{number("predicted_step_s"), number("measured_step_s")};
  if (!(read.predicted_s > 0.0) || !(read.measured_s > 0.0)) return std::nullopt;
  return read;
}

std::optional<StepComparison> compared_step(const Recipe& recipe, double measured_tokens_per_s) {
  const auto predicted = predicted_step(recipe);
  if (!predicted || !(measured_tokens_per_s > 0.0)) return std::nullopt;
  return StepComparison{predicted->time.total(), predicted->tokens / measured_tokens_per_s};
}

}  // namespace sherd::engine
