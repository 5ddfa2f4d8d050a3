/// A run's model on its mesh: the units, each with placement, precision and layout, before any rank
/// holds them. Memory, traffic and the training step follow from it.
#pragma once

#include <vector>

#include "engine/train/training_options.h"
#include "sharding/zero/unit.h"

namespace sherd::engine {

sharding::ShardingPlan sharding_plan(const TrainingOptions& options, const sharding::Mesh& mesh,
                                     int rank);

}  // namespace sherd::engine
