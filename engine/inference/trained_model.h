/// A model whose weights are there: a checkpoint of ours, a Hugging Face folder, or an adapter's folder, whose base is
/// another folder.
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
  std::int64_t batch_size = 0;  ///< sequences of one step of its training, on however many ranks
  TrainingOptions options;      ///< without gradients
  std::vector<char32_t> vocabulary;
  /// One of the two.
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;
  std::shared_ptr<const huggingface::FolderWeights> folder;
  /// Of an adapter's folder: the model's, and what the adapter changes. The model has no adapter then; `folder` reads
  /// its weights with the adapter in them.
  std::string base{};
  std::shared_ptr<huggingface::Overlay> overlay{};
};

/// Reads no weights yet. A checkpoint's recipe is compared with its tensors, a folder's config.json with
/// its own. Without `request.ranks` a folder is used on one. An adapter's base is what adapter_config.json names, or
/// model.from of `request.sets`.
/// Errors   UsageError if that is no folder here.
TrainedModel trained_model(const TrainedModelRequest& request);

/// Fills `model`, which was made of `trained.options`. A collective.
void load_weights(const TrainedModel& trained, ShardedModel& model);

/// Where the run that wrote a checkpoint keeps the files of a Hugging Face folder, if it has any.
std::string kept_beside(const checkpoint::Checkpoint& checkpoint);

}  // namespace sherd::engine
