/// The loss of a trained model's weights on a text. (Text from it: generation.h.)
///
/// The model is defined by the recipe in a checkpoint, or by a Hugging Face folder's config.json.
/// `sets` overrides where the text is and how the work is shared. Memory holds parameters and one
/// pass, no gradients and no moments.
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
  std::shared_ptr<const Machine> machine{};  ///< none: from the recipe; set by tests
  bool average = false;                      ///< use the average of the weights in a checkpoint
  /// Ctrl-C becomes a request to end. False for a library: signals are its caller's.
  bool handles_signals = true;
  /// All that share the work, each with equally many ranks; null: this process alone.
  std::shared_ptr<sharding::Processes> processes{};
  /// What to do if the model doesn't fit, as a sentence.
  std::string if_too_large =
      "Use another number of --ranks (at stage 3 each rank holds less), or a machine with more "
      "memory.";
};

/// The loss in units that are comparable across tokenizers.
struct TextLoss : EvaluationResult {
  Set main_set{};  ///< the one whose loss it is
  /// The validation data differ from the run's validation data, so the model may have been trained
  /// on them.
  bool is_of_other_data = false;

  double perplexity() const;  ///< e^loss
  /// None if tokens have no text, as in token files without a tokenizer.
  std::optional<double> bits_per_byte() const;
};

/// Nothing in the checkpoint is trusted: before anything is allocated, its recipe is compared with
/// its tensors, and the memory needed with the machine's.
///
/// The loss over the whole validation split: what training itself prints after its last step. In
/// several processes, all return what they know; the first one has everything.
/// Errors   DataError for a damaged checkpoint, for text without validation windows, and for text
///          with characters that the model doesn't know; UsageError for a recipe that doesn't fit
///          the checkpoint; Interrupted.
TextLoss evaluate_checkpoint(const TrainedModelRequest& request);

}  // namespace sherd::engine
