/// What a checkpoint says of a run besides tensors, as numbers: written by us, read from anybody.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "checkpoint/store/committed.h"
#include "engine/train/training_step.h"

namespace sherd::engine {

nlohmann::json to_json(const TrainingStep::Counters& counters);

/// Errors   DataError naming the manifest where a counter is missing, isn't a whole number, or can't
///          be a run's: every step done was an update or a skip, a scale is above 0 and below 2^127.
TrainingStep::Counters counters_of(const checkpoint::Checkpoint& checkpoint);

/// Of the model at that step, if it was evaluated.
std::optional<double> validation_loss_of(const checkpoint::Manifest& manifest);

}  // namespace sherd::engine
