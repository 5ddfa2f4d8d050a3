/// Loads a run's initial adapter from a folder written by PEFT or by `sherd export`
/// (checkpoint.init_from).
#pragma once

#include <string>

#include "checkpoint/store/disk.h"
#include "engine/huggingface/adapter_map.h"
#include "engine/train/layout/training_options.h"
#include "sharding/state/state.h"

namespace sherd::engine {

/// Converts a model's adapter to engine/huggingface's AdapterWeights: its targets, the modules
/// trained whole, rank and sizes. Alpha, dropout and the base are added from the recipe.
huggingface::AdapterWeights adapter_kinds(const model::ModelShape& shape);

/// Fills the adapter's parameters and the modules trained whole, any ranges of them; other tensors
/// of `wanted` are unchanged. `base`: the folder of the model, for its family. Memory: the adapter,
/// once.
/// Errors   DataError for tensors that are missing, or of another shape.
void load_first_adapter(checkpoint::Disk& disk, const std::string& folder, const std::string& base,
                        const TrainingOptions& options, const sharding::State& wanted,
                        const sharding::CopyState& copy);

}  // namespace sherd::engine
