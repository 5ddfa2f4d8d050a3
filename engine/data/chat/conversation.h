/// A line of chat data, whichever of its usual forms it has, as messages.
///
///   {"messages": [{"role", "content", ...}, ...], "tools": [...]}       OpenAI, Hugging Face
///   {"conversations": [{"from": "human" | "gpt" | ..., "value"}, ...]}  ShareGPT
///   {"instruction", "input", "output"}                                  Alpaca
///   {"prompt", "completion"}                                            texts, or lists of messages
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "engine/data/template/value.h"

namespace sherd::data {

struct Message {
  templates::Value fields;  ///< role, content and whatever else it has
  bool is_answer = false;   ///< of the assistant
};

struct Conversation {
  std::vector<Message> messages;
  templates::Value tools = templates::None{};
  /// The messages before the completion: what "train_on: completion" leaves out.
  std::size_t num_prompt_messages = 0;
  /// Of {"prompt", "completion"} that are texts: these two, and no messages.
  bool is_plain = false;
  templates::MarkedText prompt, completion;
};

/// Texts are marked as data; roles of letters alone aren't, since templates spell special tokens with
/// them.
/// Errors   DataError, without the place: not JSON, none of these forms, a field of another type, a
///          system message that isn't the first, an answer to nothing, a tool's result that no answer
///          asked for
Conversation read_conversation(std::string_view json);

}  // namespace sherd::data
