/// What a checkpoint is good for besides going on: the loss of its weights on a text, and text.
///
/// The model is as in the recipe that the checkpoint holds; what `sets` override is where the text
/// is and how the work is shared. Memory holds parameters and one pass, no gradients and no
/// moments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/device.h"
#include "engine/evaluation.h"
#include "engine/sampling.h"

namespace sherd::engine {

struct TrainedModelRequest {
  std::string checkpoint;             ///< its folder
  std::vector<std::string> sets{};    ///< "key=value"
  std::optional<std::int64_t> ranks;  ///< none: as many as in the recipe
  std::optional<Device> device{};     ///< none: what the recipe names; for tests
};

/// The loss over the whole validation split: what training itself prints after its last step.
/// Errors   DataError for a damaged checkpoint, or text without validation windows or with
///          characters that the model doesn't know; UsageError for a recipe that doesn't fit it;
///          Interrupted.
EvaluationResult evaluate_checkpoint(const TrainedModelRequest& request);

/// `prompt` and the text after it, safe on a terminal. `options.num_tokens` at least 1.
std::string sample_checkpoint(const TrainedModelRequest& request, const std::string& prompt,
                              const SamplingOptions& options);

}  // namespace sherd::engine
