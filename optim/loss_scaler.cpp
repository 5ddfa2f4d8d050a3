#include "optim/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace sherd::optim {

LossScaler::LossScaler(const LossScaling& options) : options_(options) {
  if (active()) state_.scale = std::ldexp(1.0, static_cast<int>(options.initial_scale_power));
  state_.credit = options.hysteresis;
}

void LossScaler::clean_step() {
  state_.skips_in_a_row = 0;
  if (options_.mode != LossScaling::Mode::kDynamic) return;
  if (++state_.clean_steps < options_.growth_interval) return;
  state_.clean_steps = 0;
  state_.credit = options_.hysteresis;
  // Beyond f32's range a scale would make every gradient overflow.
  state_.scale = std::min(state_.scale * options_.growth_factor, 0x1.0p+100);
}

void LossScaler::skipped_step() {
  ++state_.skips_in_a_row;
  ++state_.total_skips;
  state_.clean_steps = 0;
  if (state_.skips_in_a_row >= kMaxSkipsInARow) {
    throw TrainingError(
        "{} steps in a row were skipped because the gradient wasn't finite, the last at loss scale "
        "{}. A lower scale won't help: look at optimizer.lr and the data, or train with "
        "mixed_precision.param_dtype: bf16.",
        state_.skips_in_a_row, state_.scale);
  }
  if (options_.mode != LossScaling::Mode::kDynamic) return;
  if (state_.credit > 1) {
    --state_.credit;
    return;
  }
  if (state_.scale <= options_.min_scale &&
      options_.on_min_scale == LossScaling::OnMinScale::kAbort) {
    throw TrainingError(
        "the gradient isn't finite at loss_scaling.min_scale {}, so a lower scale can't help ({} "
        "steps skipped in a row). Look at optimizer.lr and the data, or train with "
        "mixed_precision.param_dtype: bf16.",
        options_.min_scale, state_.skips_in_a_row);
  }
  state_.scale = std::max(state_.scale * options_.backoff_factor, options_.min_scale);
}

}  // namespace sherd::optim
