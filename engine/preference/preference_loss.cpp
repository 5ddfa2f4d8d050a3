#include "engine/preference/preference_loss.h"

#include <algorithm>
#include <cmath>

namespace sherd::engine {
namespace {

double sigmoid(double x) {
  return x >= 0.0 ? 1.0 / (1.0 + std::exp(-x)) : std::exp(x) / (1.0 + std::exp(x));
}
double log_sigmoid(double x) {
  return x >= 0.0 ? -std::log1p(std::exp(-x)) : x - std::log1p(std::exp(x));
}
double sigmoid_slope(double x) {
  return sigmoid(x) * sigmoid(-x);
}

/// A function of one number, and its derivative.
struct Value {
  double loss, slope;
};

// -(1 - e) ln s(x) - sign e ln s(-x), divided by `divisor`.
Value of_margin(double x, double smoothing, double sign, double divisor) {
  const double flipped = sign * smoothing;
  return {(-(1.0 - smoothing) * log_sigmoid(x) - flipped * log_sigmoid(-x)) / divisor,
          (-(1.0 - smoothing) * sigmoid(-x) + flipped * sigmoid(x)) / divisor};
}

// ln(p / (1 - p)) of p = e^m, and its derivative by m. A probability of 1 has no odds: what is
// above 1 - 1e-12 counts as that.
Value log_odds(double mean) {
  const double rest = std::max(-std::expm1(mean), 1e-12);
  return {mean - std::log(rest), 1.0 / rest};
}

PairLoss orpo(const PreferenceOptions& options, double chosen, double rejected) {
  const Value odds_chosen = log_odds(chosen), odds_rejected = log_odds(rejected);
  const double odds = odds_chosen.loss - odds_rejected.loss;
  const double slope = -options.beta * sigmoid(-odds);
  return {.loss = -chosen - options.beta * log_sigmoid(odds),
          .d_chosen = -1.0 + slope * odds_chosen.slope,
          .d_rejected = -slope * odds_rejected.slope};
}

PairLoss of_ratios(const PreferenceOptions& options, double chosen, double rejected) {
  const double beta = options.beta, h = chosen - rejected;
  const auto both = [beta](Value value) {
    return PairLoss{
        .loss = value.loss, .d_chosen = beta * value.slope, .d_rejected = -beta * value.slope};
  };
  switch (options.loss) {
    case PreferenceLoss::kSigmoid:
      return both(of_margin(beta * h, options.label_smoothing, 1.0, 1.0));
    case PreferenceLoss::kRobust:
      return both(
          of_margin(beta * h, options.label_smoothing, -1.0, 1.0 - 2.0 * options.label_smoothing));
    case PreferenceLoss::kSimpo:
      return both(of_margin(beta * h - options.simpo_gamma, options.label_smoothing, 1.0, 1.0));
    case PreferenceLoss::kHinge:
      return both({std::max(0.0, 1.0 - beta * h), beta * h < 1.0 ? -1.0 : 0.0});
    case PreferenceLoss::kIpo: {
      const double off = h - 1.0 / (2.0 * beta);
      return {.loss = off * off, .d_chosen = 2.0 * off, .d_rejected = -2.0 * off};
    }
    case PreferenceLoss::kApoZero:
      return {.loss = sigmoid(-beta * chosen) + sigmoid(beta * rejected),
              .d_chosen = -beta * sigmoid_slope(beta * chosen),
              .d_rejected = beta * sigmoid_slope(beta * rejected)};
    case PreferenceLoss::kApoDown: {
      const double of_margin = beta * sigmoid_slope(beta * h);
      return {.loss = sigmoid(beta * chosen) + sigmoid(-beta * h),
              .d_chosen = beta * sigmoid_slope(beta * chosen) - of_margin,
              .d_rejected = of_margin};
    }
    default:
      return {};
  }
}

}  // namespace

PairLoss pair_loss(const PreferenceOptions& options, const AnswerScore& chosen,
                   const AnswerScore& rejected) {
  const auto divisor = [&](const AnswerScore& answer) {
    return options.has_means() ? static_cast<double>(answer.tokens) : 1.0;
  };
  const double of_chosen = divisor(chosen), of_rejected = divisor(rejected);
  const auto ratio = [&](const AnswerScore& answer, double by) {
    const double reference = options.has_reference() ? answer.reference : 0.0;
    return (answer.log_probability - reference) / by;
  };
  const double ratio_chosen = ratio(chosen, of_chosen);
  const double ratio_rejected = ratio(rejected, of_rejected);
  PairLoss result = options.loss == PreferenceLoss::kOrpo
                        ? orpo(options, ratio_chosen, ratio_rejected)
                        : of_ratios(options, ratio_chosen, ratio_rejected);
  result.d_chosen /= of_chosen;
  result.d_rejected /= of_rejected;
  const bool in_means = !options.has_reference();
  const auto reported = [&](const AnswerScore& answer, double by) {
    return answer.log_probability / (in_means ? by : 1.0);
  };
  result.logp_chosen = reported(chosen, of_chosen);
  result.logp_rejected = reported(rejected, of_rejected);
  const auto reward = [&](double ratio, double by) {
    return options.beta * (in_means ? ratio : ratio * by);
  };
  result.reward_chosen = reward(ratio_chosen, of_chosen);
  result.reward_rejected = reward(ratio_rejected, of_rejected);
  return result;
}

JudgedLoss judged_loss(const PreferenceOptions& options, const AnswerScore& answer, bool is_wanted,
                       double divergence) {
  const double ratio = answer.log_probability - answer.reference;
  const double x = options.beta * (is_wanted ? ratio - divergence : divergence - ratio);
  const double weight = is_wanted ? options.desirable_weight : options.undesirable_weight;
  const double slope = weight * options.beta * sigmoid_slope(x);
  return {.loss = weight * sigmoid(-x),
          .d_answer = is_wanted ? -slope : slope,
          .reward = options.beta * ratio};
}

}  // namespace sherd::engine
