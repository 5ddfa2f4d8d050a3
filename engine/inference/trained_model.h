/// A model with weights: a Sherd checkpoint, a Hugging Face folder, or an adapter's folder, whose
/// base is another folder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/store/committed.h"
#include "engine/huggingface/weights.h"
#include "engine/inference/evaluate.h"
#include "engine/recipe/recipe.h"
#include "engine/train/layout/training_options.h"
#include "engine/train/sharded_model.h"

namespace sherd::engine {

struct TrainedModel {
  std::string path;
  Recipe recipe;
  std::int64_t batch_size = 0;  ///< sequences of one of its training steps, over all ranks
  TrainingOptions options;      ///< without gradients
  bool handles_signals = true;  ///< TrainedModelRequest::handles_signals
  std::string if_too_large;     ///< TrainedModelRequest::if_too_large
  std::vector<char32_t> vocabulary;
  /// Exactly one of the two is set.
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;
  std::shared_ptr<const huggingface::FolderWeights> folder;
  /// For an adapter's folder: the base model's folder, and what the adapter changes. The model
  /// itself then has no adapter; `folder` reads the merged weights.
  std::string base{};
  std::shared_ptr<huggingface::Overlay> overlay{};
};

/// Reads no weights yet. A checkpoint's recipe is compared with its tensors, a folder's config.json
/// with the folder's tensors. Without `request.ranks` a folder is used on one rank. An adapter's
/// base is what adapter_config.json names, or model.from of `request.sets`.
/// Errors   UsageError if the base isn't a folder on this machine.
TrainedModel trained_model(const TrainedModelRequest& request);

/// Where the model's ranks are: `request.machine`, in `request.processes`, or as the recipe says.
std::shared_ptr<const Machine> machine_of(const TrainedModelRequest& request,
                                          const TrainedModel& trained);

/// Fills `model`, which was constructed from `trained.options`. A collective.
void load_weights(const TrainedModel& trained, ShardedModel& model);

/// Where the run that wrote a checkpoint keeps its copies of a Hugging Face folder's files, if it
/// has any.
std::string kept_beside(const checkpoint::Checkpoint& checkpoint);

}  // namespace sherd::engine
