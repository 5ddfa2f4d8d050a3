/// What replicas hadn't sent of their gradients (optim/compressed_sum.h), after a resume with another
/// number of replicas.
///
///   error of each of W' replicas = (sum of the errors of the W replicas that were saved) / W'
///
/// Added in f32, in the order of replicas. So all replicas together have what they had, up to
/// rounding. The velocities of sparse sums are dealt out in the same way.
#pragma once

#include "checkpoint/store/committed.h"
#include "engine/saving/run_state.h"

namespace sherd::engine {

/// Reads this rank's part of each saved replica's errors. Memory: its own errors once more, on the
/// heap, until it returns. Not a collective.
/// Errors   DataError as checkpoint::load
void deal_out_errors(const checkpoint::Checkpoint& checkpoint, const TrainingOptions& options,
                     const ShardedModel& model, int saved_replicas, Tensor reading);

}  // namespace sherd::engine
