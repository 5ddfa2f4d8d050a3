/// Steps that aren't applied because they look wrong: block `bad_steps` of a recipe.
#pragma once

#include <cstdint>

namespace sherd::engine {

/// optim/bad_steps.h has the rules.
struct BadStepsKeys {
  double max_loss = 0, max_grad_norm = 0;  ///< 0: no limit
  double sigma = 0;                        ///< 0: no limit by the window
  std::int64_t window = 0;
  bool skip_non_finite = false;
  std::int64_t max_in_a_row = 0;
  std::int64_t rewind_after = 0;  ///< bad steps in a row; 0: never
  std::int64_t rewind_steps = 0, skip_data_steps = 0, max_rewinds = 0;
};

}  // namespace sherd::engine
