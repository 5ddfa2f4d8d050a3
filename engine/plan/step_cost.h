/// The expected cost of a step, to rank recipes; it isn't a forecast of time.
///
///   flops * (1 + kSmallBatchTokens / tokens of a micro-step) + kFlopsPerByte * exposed bytes
///     + kFlopsPerDiskByte * exposed bytes of state on disk
///
/// Recompute multiplies the flops: selective by 1.02, full by 4/3 (one more forward). Staging less
/// than a whole save multiplies the sum by 1.01. Small micro-steps make matmuls less efficient.
/// Part of the communication is exposed, and all of an all-gather that isn't prefetched.
#pragma once

#include "engine/plan/planned_recipe.h"

namespace sherd::engine {

/// All ranks together.
struct StepCost {
  double flops = 0.0;  ///< of forward, backward and recompute
  double sent = 0.0;   ///< bytes
  double total = 0.0;  ///< in flops
};

StepCost step_cost(const PlannedRecipe& planned);

}  // namespace sherd::engine
