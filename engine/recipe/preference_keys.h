/// Training on preferences between answers: block `preference` of a recipe.
#pragma once

#include "engine/preference/preference_loss.h"

namespace sherd::engine {

/// engine/preference/preference_loss.h has the equations.
struct PreferenceKeys {
  PreferenceLoss loss = PreferenceLoss::kNone;
  double beta = 0, label_smoothing = 0, simpo_gamma = 0;
  double desirable_weight = 0, undesirable_weight = 0;

  bool active() const { return loss != PreferenceLoss::kNone; }
  PreferenceOptions options() const {
    return {loss, beta, label_smoothing, simpo_gamma, desirable_weight, undesirable_weight};
  }
};

}  // namespace sherd::engine
