/// What a chat template takes, found out by rendering small conversations with it.
///
/// Data spell the same thing in several ways: content is a text or a list of parts, the arguments of a tool
/// call are an object or its JSON text. Many templates know one way, and print the other as Python shows
/// it. A conversation is brought into the way that its template knows.
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

/// `render` shows messages with tools, as text; it throws where the template does.
TemplateHabits habits_of(
    const std::function<std::string(const std::vector<templates::Value>& messages,
                                    const templates::Value& tools)>& render);

/// A message's fields as such a template takes them; itself where it does.
/// Errors   UnfitRow: arguments that aren't JSON
templates::Value adapted(const templates::Value& fields, const TemplateHabits& habits);

}  // namespace sherd::data
