/// Text from a trained model: a checkpoint of ours, or a Hugging Face folder.
///
/// On a CPU a cache of keys and values (kernels/kv_cache.h) makes each token cost a pass over itself;
/// on a GPU, which has no such kernel yet, a pass over all before it. Memory is planned for the longest
/// prompt and what follows it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/generate/token_choice.h"
#include "engine/run/inference.h"

namespace sherd::engine {

struct GeneratedText {
  enum class End { kLength, kStop, kEndToken };

  std::string text;             ///< behind the prompt, without the stop string or end token
  std::int64_t num_tokens = 0;  ///< generated
  End end = End::kLength;
};
std::string_view name_of(GeneratedText::End end);  ///< "length", "stop", "end"

struct GenerationRequest {
  TrainedModelRequest model;
  SamplingOptions sampling;  ///< num_tokens at least 1; each prompt draws with the same seed
  std::vector<std::string> prompts;
  std::vector<std::string> stops{};  ///< text ends in front of the first of these
  bool ignores_end_tokens = false;
  /// Text is for a terminal: what isn't printable is escaped. Otherwise it is what it is.
  bool for_terminal = true;

  /// Told once, before any text, what is worth knowing ("2 ranks pass whole units around for ...").
  std::function<void(const std::string&)> on_note{};
  /// Of the only prompt: pieces of whole characters as they come.
  std::function<void(std::string_view)> on_text{};
  /// Of each prompt, in order.
  std::function<void(std::size_t prompt, const GeneratedText&)> on_end{};
};

/// With several ranks prompts are dealt to ranks, where every rank has room for all parameters;
/// otherwise all ranks work on one prompt after the other and gather each unit for each token.
/// Errors   as evaluate_checkpoint; UsageError for a prompt that has no ids.
void generate(const GenerationRequest& request);

}  // namespace sherd::engine
