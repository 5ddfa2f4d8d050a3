/// A run's state as checkpoints see it: logical tensors and this rank's pieces of them.
#pragma once

#include "engine/train/training_step.h"
#include "sharding/state/state.h"

namespace sherd::engine {

/// Every state tensor of the model, the same list on every rank: each trained parameter's FP32
/// values ("param"), moments, and the average if one is kept. Those that optimizer.groups freezes
/// are state too, so that a checkpoint holds the whole model: their values, of 16 bits as f32, and,
/// if there is an average, the same values again. An adapter's frozen base isn't state.
std::vector<sharding::StateTensor> state_tensors(const TrainingOptions& options);

/// Whether checkpoints hold frozen parameters. They are loaded by load_frozen (base_model.h).
bool saves_frozen(const TrainingOptions& options);

enum class Pieces {
  kOwned,  ///< this rank's part of its own slice: all ranks together have each element once
  kHeld,   ///< every slice that this rank updates, which a load must fill (stage 0: all of them)
};
sharding::State run_state(const TrainingOptions& options, const ShardedModel& model,
                          const TrainingStep& training_step, Pieces pieces);
/// The parameters only.
sharding::State weights(const TrainingOptions& options, const ShardedModel& model, Pieces pieces);

}  // namespace sherd::engine
