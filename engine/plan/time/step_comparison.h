/// Compares a run's steps with the prediction of the time model, on CPUs whose rates are known
/// (`sherd info --rates`).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/time/step_time.h"
#include "engine/recipe/cluster_file.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {

struct PredictedStep {
  StepTime time;
  double tokens = 0.0;
  std::string on{};                    ///< "this processor", a GPU's name
  std::vector<std::string> assumed{};  ///< what was never measured

  double tokens_per_s() const { return tokens / time.total(); }
};
/// The predicted step of a recipe on this machine's CPUs. Nothing if it runs on GPUs, if it is of a
/// kind without times, or if the rates of this processor were never measured: this measures nothing.
std::optional<PredictedStep> predicted_step(const Recipe& recipe);
/// The same on a cluster of as many ranks. On CPUs, takes this processor's rates from `cpus`, or
/// measures them if need be.
/// Errors   UsageError: another number of ranks, a key without times, parameter servers on GPUs.
PredictedStep predicted_step(const Recipe& recipe, const Cluster& cluster,
                             const std::optional<CpuRates>& cpus = {});
/// The key of a training whose time can't be predicted yet; empty if there is none.
std::string_view key_without_times(const Recipe& recipe);

/// "predicted on this processor: 195 ms a step, 10.5k tokens/s (matmuls 82 %, attention 14 %)".
std::string predicted_step_text(const PredictedStep& step);
std::string predicted_step_json(const PredictedStep& step);

/// For <output_dir>/time.json and a run's last line.
struct StepComparison {
  double predicted_s = 0.0, measured_s = 0.0;  ///< the median step

  std::string text() const;  ///< "a step took 0.214 s (median), predicted 0.195 s: 1.10 times"
  std::string json() const;
  static std::optional<StepComparison> from_json(const std::string& json);
};
std::optional<StepComparison> compared_step(const Recipe& recipe, double measured_tokens_per_s);

}  // namespace sherd::engine
