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

  std::string text{};           ///< behind the prompt, without the stop string or end token
  std::int64_t num_tokens = 0;  ///< generated
  End end = End::kLength;
  std::int64_t prompt_tokens = 0;
  double first_seconds = 0.0;  ///< until the first token was there: the pass over the prompt
  double other_seconds = 0.0;  ///< for the tokens after it
};
std::string_view name_of(GeneratedText::End end);  ///< "length", "stop", "end"

/// How a text goes on.
struct GenerationOptions {
  SamplingOptions sampling{};        ///< num_tokens at least 1
  std::vector<std::string> stops{};  ///< text ends in front of the first of these
  bool ignores_end_tokens = false;
  std::vector<std::int32_t> end_tokens{};  ///< that end a text, besides the model's own
  /// Text is for a terminal: what isn't printable is escaped. Otherwise it is what it is.
  bool for_terminal = true;
};

struct GenerationRequest {
  TrainedModelRequest model;
  GenerationOptions options{};  ///< each prompt draws with the same seed
  std::vector<std::string> prompts;

  /// Told once, before any text, what is worth knowing.
  std::function<void(const std::string&)> on_note{};
  /// Of the only prompt: pieces of whole characters as they come.
  std::function<void(std::string_view)> on_text{};
  /// Of each prompt, in order.
  std::function<void(std::size_t prompt, const GeneratedText&)> on_end{};
};

/// With several ranks prompts are dealt to ranks, where every rank has room for all parameters;
/// otherwise all ranks work on one prompt after the other (TextModel::ranks_work_together). Memory is
/// planned for the longest prompt and what follows it.
/// Errors   as evaluate_checkpoint; UsageError for a prompt that has no ids.
void generate(const GenerationRequest& request);

/// The text behind one prompt.
GeneratedText generate_text(const TextModel& model, Decoder& decoder,
                            const std::vector<std::int32_t>& prompt,
                            const GenerationOptions& options,
                            const std::function<void(std::string_view)>& on_text = {});

}  // namespace sherd::engine
