/// A row of preferences, as rows of prompt and completion (conversation.h).
///
///   pairs    {"prompt", "chosen", "rejected"}        TRL: texts, or lists of messages
///            {"chosen", "rejected"}                  lists of messages that begin alike; what they
///                                                    share is the prompt. A text "prompt" that
///                                                    repeats their first message is ignored
///            {"input", "preferred_output", "non_preferred_output"}       OpenAI
///   judged   {"prompt", "completion", "label"}       TRL: the label is true or false
///
/// Other fields ("system", "tools", ...) belong to both answers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/data/chat/chat_options.h"
#include "engine/data/chat/unfit_row.h"

namespace sherd::data {

struct PreferenceRow {
  /// Rows of JSON: the chosen and the rejected answer, or the judged one.
  std::vector<std::string> answers;
  bool is_wanted = false;  ///< the label
};

/// `kind` isn't kDocument.
/// Errors   UnfitRow: missing fields, fields of a wrong type, an empty answer, equal answers
PreferenceRow read_preference(std::string_view json, ExampleKind kind);

/// The prompt of one judged row with the completion of another, as a row of JSON; "" if one is a
/// text and the other isn't. Both are what read_preference returned.
std::string with_completion_of(const std::string& row, const std::string& other);

}  // namespace sherd::data
