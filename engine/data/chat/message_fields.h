/// Reads the fields of a message or turn, as OpenAI, TRL, ShareGPT, LLaMA-Factory and axolotl name
/// them.
#pragma once

#include <string_view>

#include "engine/data/chat/conversation.h"

namespace sherd::data {

/// Appends a message: {"role", "content", ...}, or {"from", "value", ...} with ShareGPT's role
/// names.
/// Errors   UnfitRow
void add_message(Conversation& conversation, const templates::Value& value);
/// Appends the message {"role": `role`, "content": `content`}.
void add_message(Conversation& conversation, std::string_view role,
                 const templates::MarkedText& content);

std::string_view role_of(const Message& message);

/// Returns `value`. If it is text, parses it as JSON: column stores and LLaMA-Factory write lists
/// so.
/// Errors   UnfitRow naming `field`: text that isn't JSON
templates::Value parsed_if_text(const templates::Value& value, std::string_view field);

/// The field; nullptr if it is missing or null.
const templates::Value* present(const templates::Dict& dict, std::string_view name);
/// Errors   UnfitRow: missing, null, or not text
const templates::MarkedText& text_field(const templates::Dict& dict, std::string_view name);
/// Whether it contains any text.
bool has_text(const templates::Value& value);

/// Adds to conversation.watched, each name once.
void watch(Conversation& conversation, std::string_view name, std::uint8_t mark);

}  // namespace sherd::data
