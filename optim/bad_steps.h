/// Which steps aren't applied because they look wrong: a judgement of the step's loss and gradient
/// norm, the same on every rank, since both are the same there.
///
///   not finite   only with `skip_non_finite`, and before the other rules
///   limits       loss > max_loss, or norm > max_grad_norm (0: no limit)
///   window       value > mean + sigma * s, for the loss or the norm. Mean and sample standard
///                deviation s are of the last `window` applied steps before this one. From half a
///                window of values on; with s = 0, only a value above the mean is bad
///
/// A bad step never enters the window, so neither does a value that isn't finite.
///
/// Source   the window is OLMo-core's SkipStepOptimizer (128 values, 6 sigma, sample deviation,
///          from half a window on), which lets skipped steps into its window.
/// Rounding f64; sums in the order of the steps, so a resumed run decides alike.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sherd::optim {

struct BadStepRules {
  double max_loss = 0.0, max_grad_norm = 0.0;  ///< 0: no limit
  double sigma = 0.0;                          ///< 0: no window
  std::int64_t window = 128;
  bool skip_non_finite = false;
  std::int64_t max_in_a_row = 10;

  bool active() const {
    return max_loss > 0.0 || max_grad_norm > 0.0 || sigma > 0.0 || skip_non_finite;
  }
};

class BadSteps {
 public:
  struct Values {
    double loss = 0.0, norm = 0.0;
    bool operator==(const Values&) const = default;
  };
  /// All that a checkpoint keeps.
  struct State {
    std::vector<Values> window{};  ///< oldest first
    std::int64_t in_a_row = 0;
    std::int64_t total = 0;
    bool operator==(const State&) const = default;
  };

  explicit BadSteps(const BadStepRules& rules) : rules_(rules) {}

  /// Why the step must not be applied: "loss 7.5 is above bad_steps.max_loss 5"; "" if it may.
  std::string reason(const Values& step) const;
  void applied(const Values& step);
  /// Errors   TrainingError after max_in_a_row bad steps in a row; the message has `reason`
  void skipped(const std::string& reason);

  const State& state() const { return state_; }
  void restore(const State& state);

 private:
  BadStepRules rules_;
  State state_;
};

}  // namespace sherd::optim
