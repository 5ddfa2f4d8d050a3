/// Model states as the ZeRO paper counts them (Rajbhandari et al., arXiv:1910.02054, §3 and §5,
/// table 1), to compare a plan with its figures.
///
/// Two things differ from a run of ours: gradients are reduced and accumulated in 16 bit, and at
/// stage 3 a 16-bit copy of a rank's parameters stays beside the FP32 slice, which we don't keep.
/// Activations, slots and everything else that isn't a state are left out, padding is counted.
#pragma once

#include <string>

#include "engine/plan/planned_recipe.h"

namespace sherd::engine {

/// Bytes of parameters, gradients and optimizer states on one of `world_size` ranks, for AdamW.
std::int64_t paper_state_bytes(const TrainingOptions& options, int stage, int world_size);

/// Decimal gigabytes at stages 1, 2 and 3 on 1, 4, 16, 64, 256 and 1024 ranks, as the paper's
/// table 1, and on as many ranks as the recipe has.
std::string paper_table(const PlannedRecipe& planned);

}  // namespace sherd::engine
