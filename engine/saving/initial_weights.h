/// Loads a run's initial weights from a Hugging Face folder (checkpoint.init_from).
#pragma once

#include "engine/huggingface/weights.h"
#include "engine/train/layout/training_options.h"

namespace sherd::engine {

/// Converts the model to engine/huggingface's ModelWeights, without adapters.
huggingface::ModelWeights model_weights(const TrainingOptions& options);

/// Opens the folder and compares it with the model; reads headers only.
huggingface::FolderWeights open_folder_weights(checkpoint::Disk& disk, const std::string& folder,
                                               const TrainingOptions& options);

}  // namespace sherd::engine
