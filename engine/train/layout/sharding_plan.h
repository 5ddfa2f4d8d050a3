/// A run's model on its mesh: the units, each with placement, precision and layout, before any rank
/// holds them. Memory, traffic and the training step follow from it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/train/layout/training_options.h"
#include "sharding/zero/unit.h"

namespace sherd::engine {

/// The part of the run's model that rank `rank` computes: all of it, or its part along the tensor
/// and context axes.
model::ModelShape rank_model(const TrainingOptions& options, const sharding::Mesh& mesh, int rank);

/// Whether a parameter of the model's table is stored as NF4: a frozen matrix of a block, if the
/// recipe requests it.
bool rests_in_four_bits(const TrainingOptions& options, std::string_view name,
                        const std::vector<std::int64_t>& shape);

/// Units with trained parameters, in the order of the model's table.
std::vector<UnitId> trained_units(const model::ModelShape& shape);
/// With local updates: each unit's fragment; -1: it has no trained parameters.
std::vector<int> fragments_of(const TrainingOptions& options,
                              const std::vector<sharding::UnitPlan>& units);

sharding::ShardingPlan sharding_plan(const TrainingOptions& options, const sharding::Mesh& mesh,
                                     int rank);

}  // namespace sherd::engine
