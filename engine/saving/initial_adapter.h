/// A run's first adapter from a folder that PEFT, or an export of ours, has written (checkpoint.init_from).
#pragma once

#include <string>

#include "checkpoint/store/disk.h"
#include "engine/huggingface/adapter_map.h"
#include "engine/train/layout/training_options.h"
#include "sharding/state/state.h"

namespace sherd::engine {

/// A model's adapter in the words of engine/huggingface: what has one and what is trained whole, rank and sizes. Alpha,
/// dropout and the base are the recipe's to add.
huggingface::AdapterWeights adapter_kinds(const model::ModelShape& shape);

/// Fills the adapter's parameters and the modules trained whole, any ranges of them; others of `wanted` stay as they
/// are. `base`: the folder of the model, for its family. Memory: the adapter, once.
/// Errors   DataError for tensors that are missing, or of another shape.
void load_first_adapter(checkpoint::Disk& disk, const std::string& folder, const std::string& base,
                        const TrainingOptions& options, const sharding::State& wanted,
                        const sharding::CopyState& copy);

}  // namespace sherd::engine
