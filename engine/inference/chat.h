/// A conversation with a trained model: a checkpoint of a run on conversations, or a Hugging Face folder with a
/// chat template.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "engine/inference/generation.h"

namespace sherd::engine {

struct ChatRequest {
  TrainedModelRequest model;    ///< used on one rank
  GenerationOptions options{};  ///< sampling.num_tokens: of an answer, at most
  std::string system{};         ///< the conversation's first message, unless empty

  /// What the user says next; nothing: the conversation is over.
  std::function<std::optional<std::string>()> next_message;
  std::function<void()> on_begin{};  ///< the model is there, and the first message can come
  std::function<void(const std::string&)> on_note{};
  std::function<void(std::string_view)> on_text{};  ///< pieces of an answer as they come
  /// The answer is complete; null: Ctrl-C has stopped it, and what was said of it stays in the conversation.
  std::function<void(const GeneratedText*)> on_answer{};
};

/// Messages go through the model's own template, so special tokens that they spell stay text. The whole
/// conversation stands before each answer; where it grows longer than the model's context, its oldest turns
/// are left out, which on_note is told. Ctrl-C (install_stop_handlers) stops an answer, not the
/// conversation.
/// Errors   as generate; DataError: the model has no tokenizer or no chat template; UsageError: a message
///          and an answer that don't fit into the context
void chat(const ChatRequest& request);

}  // namespace sherd::engine
