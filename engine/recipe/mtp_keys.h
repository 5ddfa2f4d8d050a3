/// Multi-token prediction: block `mtp` of a recipe. engine/model/prediction.h has the equations.
#pragma once

#include <cstdint>

namespace sherd::engine {

struct MtpKeys {
  std::int64_t num_layers = 0;  ///< each predicts one more token; 0: off
  double loss_scaling_factor = 0;

  bool active() const { return num_layers > 0; }
};

}  // namespace sherd::engine
