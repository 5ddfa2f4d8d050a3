/// The fields of a message or turn, in the spellings of OpenAI, TRL, ShareGPT, LLaMA-Factory and axolotl.
#pragma once

#include <string_view>

#include "engine/data/chat/conversation.h"

namespace sherd::data {

/// Appends a message: {"role", "content", ...}, or {"from", "value", ...} with ShareGPT's names of roles.
/// Errors   UnfitRow
void add_message(Conversation& conversation, const templates::Value& value);
/// The same of {"role": `role`, "content": `content`}.
void add_message(Conversation& conversation, std::string_view role,
                 const templates::MarkedText& content);

std::string_view role_of(const Message& message);

/// `value`, or what it says where it is JSON text, as column stores and LLaMA-Factory write lists.
/// Errors   UnfitRow that names `field`: text that isn't JSON
templates::Value parsed_if_text(const templates::Value& value, std::string_view field);

/// The field, unless it isn't there or null.
const templates::Value* present(const templates::Dict& dict, std::string_view name);
/// Errors   UnfitRow: not there, null, or no text
const templates::MarkedText& text_field(const templates::Dict& dict, std::string_view name);
/// Whether there is a byte of text in it.
bool has_text(const templates::Value& value);

/// Adds to conversation.watched, once for each name.
void watch(Conversation& conversation, std::string_view name, std::uint8_t mark);

}  // namespace sherd::data
