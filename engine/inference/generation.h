/// Text from a trained model: a checkpoint of ours, or a Hugging Face folder.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/generate/token_choice.h"
#include "engine/inference/evaluate.h"

namespace sherd::engine {

class Decoder;
class TextModel;

struct GeneratedText {
  enum class End { kLength, kStop, kEndToken };

  std::string text{};           ///< after the prompt, without the stop string or end token
  std::int64_t num_tokens = 0;  ///< generated
  End end = End::kLength;
  std::int64_t prompt_tokens = 0;
  double first_seconds = 0.0;  ///< until the first token: the pass over the prompt
  double other_seconds = 0.0;  ///< for the tokens after it
};
std::string_view name_of(GeneratedText::End end);  ///< "length", "stop", "end"

/// How a text is continued.
struct GenerationOptions {
  SamplingOptions sampling{};        ///< num_tokens at least 1
  std::vector<std::string> stops{};  ///< text ends before the first of these
  bool ignores_end_tokens = false;
  std::vector<std::int32_t> end_tokens{};  ///< in addition to the model's own
  /// Text is for a terminal: unprintable characters are escaped. Otherwise text is unchanged.
  bool for_terminal = true;
  /// Asked after each token; false ends the text, as kLength. Nothing asks during the prompt.
  std::function<bool()> wants_more{};
};

struct GenerationRequest {
  TrainedModelRequest model;
  GenerationOptions options{};  ///< each prompt draws with the same seed
  std::vector<std::string> prompts;

  /// Receives notes for the user, once, before any text.
  std::function<void(const std::string&)> on_note{};
  /// For a single prompt: receives pieces of whole characters as they are generated.
  std::function<void(std::string_view)> on_text{};
  /// Called for each prompt, in order.
  std::function<void(std::size_t prompt, const GeneratedText&)> on_end{};
};

/// With several ranks, prompts are distributed over ranks if every rank has room for all
/// parameters. Otherwise all ranks work on one prompt after the other
/// (TextModel::ranks_work_together). Memory is planned for the longest prompt and its continuation.
/// Errors   as evaluate_checkpoint; UsageError for a prompt without ids.
void generate(const GenerationRequest& request);

/// Generates the text after one prompt.
GeneratedText generate_text(const TextModel& model, Decoder& decoder,
                            const std::vector<std::int32_t>& prompt,
                            const GenerationOptions& options,
                            const std::function<void(std::string_view)>& on_text = {});

}  // namespace sherd::engine
