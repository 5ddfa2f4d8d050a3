/// Runs a trained model on ranks, for code that only reads its weights.
#pragma once

#include <functional>

#include "engine/inference/trained_model.h"
#include "engine/launch/machine.h"

namespace sherd::engine {

/// Whether `trained` fits into the memory of this machine's ranks.
bool fits(const TrainedModel& trained, const Machine& machine);

/// Runs `use(rank, model)` on every rank of `machine`, with the weights in the model.
/// Errors   UsageError if it doesn't fit and memory.on_exceed isn't warn.
void with_weights(const TrainedModel& trained, std::shared_ptr<const Machine> machine,
                  const std::function<void(sharding::Rank& rank, ShardedModel& model)>& use);

}  // namespace sherd::engine
