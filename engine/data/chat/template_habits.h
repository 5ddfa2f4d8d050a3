/// What a chat template accepts, found by rendering small conversations with it.
///
/// Data have several forms of the same thing: content is a text or a list of parts; the arguments
/// of a tool call are an object or its JSON text. Many templates support one form and print the
/// other as Python's repr. Conversations are converted to the form that their template supports.
#pragma once

#include <functional>
#include <vector>

#include "engine/data/chat/conversation.h"

namespace sherd::data {

struct TemplateHabits {
  bool takes_parts = true;
  bool takes_arguments_as_text = true;
  bool takes_arguments_as_object = true;
};

/// `render` renders messages with tools as text; it throws if the template does.
TemplateHabits habits_of(
    const std::function<std::string(const std::vector<templates::Value>& messages,
                                    const templates::Value& tools)>& render);

/// A message's fields in a form that such a template accepts; unchanged if it accepts them already.
/// Errors   UnfitRow: arguments that aren't JSON
templates::Value adapted(const templates::Value& fields, const TemplateHabits& habits);

}  // namespace sherd::data
