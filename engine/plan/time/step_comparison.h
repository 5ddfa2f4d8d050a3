/// Compares a run's steps with the prediction of the time model, on CPUs whose rates are known
/// (`sherd info --rates`).
#pragma once

#include <optional>
#include <string>

#include "engine/plan/time/step_time.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {

/// The predicted step of a recipe on this machine's CPUs. Nothing if it runs on GPUs, or if the
/// rates of this processor were never measured: this measures nothing.
struct PredictedStep {
  StepTime time;
  double tokens = 0.0;

  double tokens_per_s() const { return tokens / time.total(); }
};
std::optional<PredictedStep> predicted_step(const Recipe& recipe);

/// "predicted on this processor: 195 ms a step, 10.5k tokens/s (matmuls 82 %, attention 14 %)".
std::string predicted_step_text(const PredictedStep& step);

/// For <output_dir>/time.json and a run's last line.
struct StepComparison {
  double predicted_s = 0.0, measured_s = 0.0;  ///< the median step

  std::string text() const;  ///< "a step took 0.214 s (median), predicted 0.195 s: 1.10 times"
  std::string json() const;
  static std::optional<StepComparison> from_json(const std::string& json);
};
std::optional<StepComparison> compared_step(const Recipe& recipe, double measured_tokens_per_s);

}  // namespace sherd::engine
