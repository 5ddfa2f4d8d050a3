#include "engine/plan/time/step_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "engine/launch/device.h"
#include "engine/plan/time/from_recipe.h"

namespace sherd::engine {

std::string_view key_without_times(const Recipe& recipe) {
  if (recipe.adapter.type != AdapterChoice::kNone) return "adapter.type";
  const bool freezes = std::ranges::any_of(recipe.optimizer.groups, &ParameterGroup::frozen);
  if (freezes) return "optimizer.groups.frozen";
  if (recipe.preference.active()) return "preference.loss";
  return recipe.distillation.active() ? "distillation.teacher" : std::string_view();
}

PredictedStep predicted_step(const Recipe& recipe, const Cluster& cluster,
                             const std::optional<CpuRates>& cpus) {
  if (const std::string_view key = key_without_times(recipe); !key.empty()) {
    throw UsageError("{} is set, but the times of such trainings can't be predicted yet.", key);
  }
  const std::int64_t servers = recipe.parallelism.parameter_servers;
  if (servers > 0 && !cluster.on_cpus()) {
    throw UsageError(
        "parallelism.parameter_servers is {}, but the cluster's device is {}; servers need CPUs. "
        "Give a cluster of CPUs, or --set parallelism.parameter_servers=0.",
        servers, cluster.device);
  }
  if (cluster.ranks() != recipe.world_size() - servers) {
    throw UsageError(
        "The cluster has {} ranks, but the recipe has {}{}. Set parallelism's degrees to match, or "
        "add --search to find a layout.",
        cluster.ranks(), recipe.world_size() - servers,
        servers > 0 ? " in addition to parameter servers" : "");
  }
  const auto rates = rates_for(recipe, cluster, cpus);
  const StepShape step = step_shape(recipe);
  return {.time = StepTimes(*rates, cluster.ranks_per_machine).of(step),
          .tokens = step.tokens_per_step(),
          .on = rates->name,
          .assumed = rates->assumed};
}

std::optional<PredictedStep> predicted_step(const Recipe& recipe) {
  if (device_traits(recipe).kind != DeviceKind::kCpu) return std::nullopt;
  if (!key_without_times(recipe).empty()) return std::nullopt;
  const std::optional<CpuRates> rates = known_cpu_rates();
  if (!rates) return std::nullopt;
  const auto made = cpu_rates_of(*rates, recipe, {});
  const StepShape step = step_shape(recipe);
  return PredictedStep{.time = StepTimes(*made, recipe.world_size()).of(step),
                       .tokens = step.tokens_per_step(),
                       .on = "this processor"};
}

std::string predicted_step_text(const PredictedStep& step) {
  const double seconds = step.time.total();
  std::string parts;
  for (const auto& [name, of_part] : step.time.parts()) {
    if (of_part < 0.05 * seconds) break;
    parts +=
        fmt::format("{}{} {:.0f} %", parts.empty() ? "" : ", ", name, 100.0 * of_part / seconds);
  }
  std::string text = fmt::format("predicted on {}: {:.4g} s a step, {:.4g} tokens/s ({})\n",
                                 step.on, seconds, step.tokens_per_s(), parts);
  for (const std::string& assumed : step.assumed) text += fmt::format("  assumed: {}\n", assumed);
  return text;
}

std::string predicted_step_json(const PredictedStep& step) {
  nlohmann::ordered_json json = {{"predicted_step_s", step.time.total()},
                                 {"predicted_tokens_per_s", step.tokens_per_s()},
                                 {"on", step.on},
                                 {"parts_s", nlohmann::ordered_json::object()},
                                 {"assumed", step.assumed}};
  for (const auto& [name, seconds] : step.time.parts()) json["parts_s"][name] = seconds;
  return json.dump(2) + "\n";
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
