#include "optim/bad_steps.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"

namespace sherd::optim {
namespace {

using Values = BadSteps::Values;

struct Spread {
  double mean = 0.0, deviation = 0.0;
};

Spread spread_of(const std::vector<Values>& window, double Values::*value) {
  const auto n = static_cast<double>(window.size());
  Spread spread;
  for (const Values& values : window) spread.mean += values.*value;
  spread.mean /= n;
  double squares = 0.0;
  for (const Values& values : window) {
    squares += (values.*value - spread.mean) * (values.*value - spread.mean);
  }
  spread.deviation = std::sqrt(squares / (n - 1.0));
  return spread;
}

}  // namespace

std::string BadSteps::reason(const Values& step) const {
  if (!std::isfinite(step.loss) || !std::isfinite(step.norm)) {
    if (!rules_.skip_non_finite) return "";
    return fmt::format("loss {} and gradient norm {} aren't both finite", step.loss, step.norm);
  }
  const auto above = [](const char* what, double value, const char* key, double limit) {
    return fmt::format("{} {:.6g} is above bad_steps.{} {:.6g}", what, value, key, limit);
  };
  if (rules_.max_loss > 0.0 && step.loss > rules_.max_loss) {
    return above("loss", step.loss, "max_loss", rules_.max_loss);
  }
  if (rules_.max_grad_norm > 0.0 && step.norm > rules_.max_grad_norm) {
    return above("gradient norm", step.norm, "max_grad_norm", rules_.max_grad_norm);
  }
  const auto num_values = static_cast<std::int64_t>(state_.window.size());
  if (rules_.sigma == 0.0 || num_values < 2 || 2 * num_values < rules_.window) return "";
  for (const auto& [what, value] :
       {std::pair("loss", &Values::loss), std::pair("gradient norm", &Values::norm)}) {
    const Spread spread = spread_of(state_.window, value);
    const double limit = spread.mean + rules_.sigma * spread.deviation;
    if (step.*value <= limit) continue;
    return fmt::format("{} {:.6g} is above {:.6g}, the mean of the last {} steps + {:g} sigma",
                       what, step.*value, limit, num_values, rules_.sigma);
  }
  return "";
}

void BadSteps::applied(const Values& step) {
  state_.in_a_row = 0;
  if (rules_.sigma == 0.0) return;
  state_.window.push_back(step);
  const auto surplus = static_cast<std::int64_t>(state_.window.size()) - rules_.window;
  if (surplus > 0) state_.window.erase(state_.window.begin(), state_.window.begin() + surplus);
}

void BadSteps::skipped(const std::string& reason) {
  ++state_.in_a_row;
  ++state_.total;
  if (state_.in_a_row < rules_.max_in_a_row) return;
  throw TrainingError(
      "{} steps in a row weren't applied (bad_steps.max_in_a_row); the last: {}. Resume from an "
      "older checkpoint, with a lower optimizer.lr or other limits.",
      state_.in_a_row, reason);
}

void BadSteps::restore(const State& state) {
  state_ = state;
  const auto surplus = static_cast<std::int64_t>(state_.window.size()) - rules_.window;
  if (surplus > 0) state_.window.erase(state_.window.begin(), state_.window.begin() + surplus);
  if (rules_.sigma == 0.0) state_.window.clear();
}

}  // namespace sherd::optim
