/// Loss scaling (Micikevicius et al., arXiv:1710.03740): the loss is multiplied by a scale so that
/// small f16 gradients don't underflow, and the update divides gradients by it. All ranks decide
/// together whether a step overflowed; on overflow all skip the update.
///
/// Dynamic, after each step:
///   overflow    each overflow uses up one of `hysteresis` credits. When only one credit is left,
///               the scale is multiplied by backoff_factor, but not below min_scale.
///   clean       after growth_interval clean steps in a row the scale is multiplied by
///               growth_factor and the credit is restored
///
/// Defaults as in DeepSpeed and Megatron: 2^16, x2, x1/2, 1000, hysteresis 2, floor 1.
///
/// A skipped step leaves parameters, moments and Adam's step count unchanged. The step number
/// advances, and with it the learning-rate schedule and the order of the data.
#pragma once

#include <cstdint>

namespace sherd::optim {

struct LossScaling {
  enum class Mode { kNone, kStatic, kDynamic };
  enum class OnMinScale { kAbort, kHold };

  Mode mode = Mode::kNone;
  std::int64_t initial_scale_power = 16;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 1000;
  std::int64_t hysteresis = 2;
  double min_scale = 1.0;
  OnMinScale on_min_scale = OnMinScale::kAbort;
};

/// A run ends after this many skipped steps in a row, whatever the options say.
inline constexpr std::int64_t kMaxSkipsInARow = 64;

class LossScaler {
 public:
  explicit LossScaler(const LossScaling& options);

  bool active() const { return options_.mode != LossScaling::Mode::kNone; }
  double scale() const { return state_.scale; }

  /// The state that checkpoints save and restore.
  struct State {
    double scale = 1.0;
    std::int64_t clean_steps = 0;
    std::int64_t credit = 0;  ///< overflows left until the scale is lowered
    std::int64_t skips_in_a_row = 0;
    std::int64_t total_skips = 0;
    bool operator==(const State&) const = default;
  };
  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

  void clean_step();
  /// Errors   TrainingError if the scale is already at min_scale (abort), or after kMaxSkipsInARow.
  void skipped_step();

 private:
  LossScaling options_;
  State state_;
};

}  // namespace sherd::optim
