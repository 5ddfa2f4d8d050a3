/// A conversation with a trained model: a checkpoint of a run on conversations, or a Hugging Face
/// folder with a chat template.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "engine/inference/generation.h"

namespace sherd::engine {

struct ChatRequest {
  TrainedModelRequest model;    ///< used on one rank
  GenerationOptions options{};  ///< sampling.num_tokens: maximum per answer
  std::string system{};         ///< the conversation's first message, unless empty
  std::int64_t context = 0;     ///< tokens that the model reads; 0: TextModel::usual_context

  /// The user's next message; nothing ends the conversation.
  std::function<std::optional<std::string>()> next_message;
  std::function<void()> on_begin{};  ///< the model is loaded: ready for the first message
  std::function<void(const std::string&)> on_note{};
  std::function<void(std::string_view)> on_text{};  ///< pieces of an answer as they come
  /// The answer is complete. null: Ctrl-C stopped it, and its text so far stays in the
  /// conversation.
  std::function<void(const GeneratedText*)> on_answer{};
};

/// Messages go through the model's own template, so special tokens spelled out in them stay text.
/// The whole conversation precedes each answer. If it grows longer than the model's context, its
/// oldest turns are dropped, and on_note is called. Ctrl-C (install_stop_handlers) stops an answer,
/// not the conversation.
/// Errors   as generate; DataError: the model has no tokenizer or no chat template; UsageError: a
///          message and an answer that don't fit into the context; a context that is too long
void chat(const ChatRequest& request);

}  // namespace sherd::engine
