/// The loss of a trained model's weights on a text. (Text from it: generation.h.)
///
/// The model is as in the recipe that a checkpoint holds, or as a Hugging Face folder's config.json
/// says; what `sets` override is where the text is and how the work is shared. Memory holds
/// parameters and one pass, no gradients and no moments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/launch/device.h"
#include "engine/train/evaluation.h"

namespace sherd::engine {

struct TrainedModelRequest {
  std::string checkpoint;                    ///< its folder, or a Hugging Face model's
  std::vector<std::string> sets{};           ///< "key=value"
  std::optional<std::int64_t> ranks;         ///< none: as many as in the recipe
  std::shared_ptr<const Machine> machine{};  ///< none: what the recipe names; for tests
};

/// The loss in words that models with other tokenizers have too.
struct TextLoss : EvaluationResult {
  std::int64_t num_bytes = 0;  ///< of text that the tokens with a loss stand for; 0: of none
  /// What is held out now isn't what the run held out: it may have been trained on.
  bool is_of_other_data = false;

  double perplexity() const;  ///< e^loss
  /// None where tokens stand for no text, as in token files without a tokenizer.
  std::optional<double> bits_per_byte() const;
};

/// Nothing in the checkpoint is trusted: its recipe is compared with its tensors, and memory with
/// what this machine has, before anything is allocated.
///
/// The loss over the whole validation split: what training itself prints after its last step.
/// Errors   DataError for a damaged checkpoint, or text without validation windows or with
///          characters that the model doesn't know; UsageError for a recipe that doesn't fit it;
///          Interrupted.
TextLoss evaluate_checkpoint(const TrainedModelRequest& request);

}  // namespace sherd::engine
