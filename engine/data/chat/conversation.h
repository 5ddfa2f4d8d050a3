/// A row of chat data in any of the usual formats, as messages.
///
///   {"messages": [{"role", "content", ...}, ...], "tools": [...]}       OpenAI, TRL
///   {"conversations": [{"from": "human" | "gpt" | ..., "value"}, ...]}  ShareGPT
///   {"instruction", "input", "output", "history"}                       Alpaca
///   {"prompt", "completion"}                                            texts, or lists of
///                                                                       messages
///   {"text"}                                                            a text, trained on as a
///                                                                       whole
///
/// All of them may have "system", "tools", "documents" and "chat_template_kwargs".
/// docs/fine_tuning.md lists the fields of every format. A null field counts as missing. `unread`
/// names fields that are neither read nor refused.
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
  templates::Value fields;  ///< role, content and any others
  bool is_answer = false;   ///< from the assistant
  bool is_trained = true;   ///< false with "weight": 0, "train": false or "loss": false
};

/// Bits of a byte's mark (templates::Mark) for the field that it came from. They detect fields that
/// a template doesn't show.
enum FieldMark : std::uint8_t {
  kOfName = templates::kFirstOfCaller,
  kOfToolCalls = 16,
  kOfTools = 32,
  kOfOther = 64,   ///< of a message's other fields, such as reasoning_content
  kOfAside = 128,  ///< content of a message from neither the user nor the assistant
};

/// A field of the row whose text a template should show.
struct WatchedField {
  std::string name;
  std::uint8_t mark = 0;  ///< one of FieldMark; 0: no text, so the template's source must name it
};

struct Conversation {
  std::vector<Message> messages;
  templates::Value tools = templates::None{};
  templates::Value documents = templates::None{};
  templates::Dict variables;  ///< chat_template_kwargs
  /// Number of messages before the completion; "train_on: completion" doesn't train on them.
  std::size_t num_prompt_messages = 0;
  /// Plain texts: `prompt`, possibly empty, and `completion`; no messages.
  bool is_plain = false;
  templates::MarkedText prompt, completion;

  std::vector<WatchedField> watched;  ///< each name once
  std::vector<std::string> unread;    ///< names of fields that aren't read, each once
};

/// Texts are marked as data. Roles made only of letters aren't, since templates build special
/// tokens from them.
/// Errors   UnfitRow
Conversation read_conversation(std::string_view json);

}  // namespace sherd::data
