/// A row of chat data, whichever of its usual forms it has, as messages.
///
///   {"messages": [{"role", "content", ...}, ...], "tools": [...]}       OpenAI, TRL
///   {"conversations": [{"from": "human" | "gpt" | ..., "value"}, ...]}  ShareGPT
///   {"instruction", "input", "output", "history"}                       Alpaca
///   {"prompt", "completion"}                                            texts, or lists of messages
///   {"text"}                                                            a text, trained on as a whole
///
/// All of them may have "system", "tools", "documents" and "chat_template_kwargs". docs/fine_tuning.md has
/// the fields of every form. A field that is null is as one that isn't there. What is neither read nor
/// refused is named in `unread`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/chat/unfit_row.h"
#include "engine/data/template/value.h"

namespace sherd::data {

struct Message {
  templates::Value fields;  ///< role, content and whatever else it has
  bool is_answer = false;   ///< of the assistant
  bool is_trained = true;   ///< "weight": 0, "train": false and "loss": false say no
};

/// Bits of a byte's mark (templates::Mark): the field that it came from, so that a field which a template
/// doesn't show is seen.
enum FieldMark : std::uint8_t {
  kOfName = templates::kFirstOfCaller,
  kOfToolCalls = 16,
  kOfTools = 32,
  kOfOther = 64,   ///< of a message's other fields, such as reasoning_content
  kOfAside = 128,  ///< content of a message that is neither the user's nor the assistant's
};

/// A field of the row with text that a template should show.
struct WatchedField {
  std::string name;
  std::uint8_t mark = 0;  ///< one of FieldMark; 0: no text, so the template's source must name it
};

struct Conversation {
  std::vector<Message> messages;
  templates::Value tools = templates::None{};
  templates::Value documents = templates::None{};
  templates::Dict variables;  ///< chat_template_kwargs
  /// The messages before the completion: what "train_on: completion" leaves out.
  std::size_t num_prompt_messages = 0;
  /// Of texts: `prompt`, maybe empty, and `completion`; no messages.
  bool is_plain = false;
  templates::MarkedText prompt, completion;

  std::vector<WatchedField> watched;  ///< each name once
  std::vector<std::string> unread;    ///< names of fields that nothing reads, each once
};

/// Texts are marked as data; roles of letters alone aren't, since templates spell special tokens with
/// them.
/// Errors   UnfitRow
Conversation read_conversation(std::string_view json);

}  // namespace sherd::data
