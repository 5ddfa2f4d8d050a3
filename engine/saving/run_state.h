/// A run's state as checkpoints see it: logical tensors and this rank's pieces of them.
#pragma once

#include "engine/train/training_step.h"
#include "sharding/state/state.h"

namespace sherd::engine {

/// Every state tensor of the model, the same list on every rank: each trained parameter's FP32
/// values ("param"), moments, and the average if one is kept. Those that optimizer.groups freezes
/// are state too, so that a checkpoint holds the whole model: their values, of 16 bits as f32, and,
/// if there is an average, the same values again. An adapter's frozen base isn't state.
///
/// Owners that publish late also save what workers have: "published", in the compute type.
///
/// If replicas train apart, "param" is the global weights, whose outer momentum is state, too. Each
/// of the `replicas` (0: the options') has its own weights ("local") and moments: of replica 0
/// under the parameter's name, of replica r under "replica.r.NAME". If sums over replicas are
/// compressed, errors are named so (optim/compressed_sum.h).
std::vector<sharding::StateTensor> state_tensors(const TrainingOptions& options, int replicas = 0);
/// A checkpoint with more JSON values in its manifest isn't read (checkpoint/format/strict_json.h).
inline constexpr std::int64_t kMostManifestValues = 1 << 24;
/// About how many JSON values the manifest of a checkpoint of `num_ranks` ranks has, of which
/// `pipeline_ranks` divide the layers. Not more than it will have.
std::int64_t manifest_values(const TrainingOptions& options, std::int64_t num_ranks,
                             std::int64_t pipeline_ranks);
/// Whether replicas have state of their own, whose number a checkpoint's reader must know.
bool replicas_have_state(const TrainingOptions& options);
/// The number of replicas that have tensors of their own; 1 if none has.
int replicas_of(const std::vector<sharding::StateTensor>& tensors);
/// With how many replicas `state_tensors` has as many tensors as a checkpoint. 0 if with no number,
/// or if replicas have no state of their own: that checkpoint has other tensors, or only shared ones.
int replicas_saved(const TrainingOptions& options,
                   const std::vector<sharding::StateTensor>& tensors);

/// Whether checkpoints hold frozen parameters. They are loaded by load_frozen (base_model.h).
bool saves_frozen(const TrainingOptions& options);

enum class Pieces {
  kOwned,  ///< this rank's part of its own slice: all ranks together have each element once
  kHeld,   ///< every slice that this rank updates, which a load must fill (stage 0: all of them)
};
/// `saved_replicas`: those of a checkpoint that is loaded (0: the options'). If their number is
/// another one, all replicas take the global weights, and those that join take the moments of
/// replica 0.
sharding::State run_state(const TrainingOptions& options, const ShardedModel& model,
                          const TrainingStep& training_step, Pieces pieces, int saved_replicas = 0);
/// With TrainingOptions::compression: where this rank holds its replica's errors, as the pieces of
/// replica `replica` of `tensors`.
std::vector<sharding::StatePiece> error_pieces(const TrainingOptions& options,
                                               const ShardedModel& model, int replica,
                                               const std::vector<sharding::StateTensor>& tensors,
                                               Pieces which);
/// The parameters only.
sharding::State weights(const TrainingOptions& options, const ShardedModel& model, Pieces pieces);

}  // namespace sherd::engine
