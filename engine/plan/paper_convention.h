/// Model states as the ZeRO paper counts them (Rajbhandari et al., arXiv:1910.02054, §3 and §5,
/// table 1), to compare a plan with its figures.
///
/// Two things differ from our runs: gradients are reduced and accumulated in 16 bit, and at stage 3
/// a rank keeps a 16-bit copy of its parameters in addition to the FP32 slice. Activations, slots
/// and everything else that isn't a state are omitted; padding is counted.
#pragma once

#include <string>

#include "engine/plan/planned_recipe.h"

namespace sherd::engine {

/// Bytes of parameters, gradients and optimizer states on one of `world_size` ranks, for AdamW.
std::int64_t paper_state_bytes(const TrainingOptions& options, int stage, int world_size);

/// Decimal gigabytes at stages 1, 2 and 3 on 1, 4, 16, 64, 256 and 1024 ranks, as in the paper's
/// table 1, and on the recipe's number of ranks.
std::string paper_table(const PlannedRecipe& planned);

}  // namespace sherd::engine
