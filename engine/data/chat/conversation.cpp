#include "engine/data/chat/conversation.h"

#include <algorithm>

#include "core/error.h"
#include "engine/data/template/json_value.h"

namespace sherd::data {
namespace {

using templates::Dict;
using templates::MarkedText;
using templates::Value;

const MarkedText& text_field(const Dict& dict, std::string_view name) {
  const Value* value = dict.named(name);
  if (!value || !value->text()) throw DataError("\"{}\" isn't a text", name);
  return *value->text();
}

Value message_of(std::string_view role, const MarkedText& content) {
  auto fields = std::make_shared<Dict>();
  fields->set(Value::text("role"), Value::text(std::string(role)));
  fields->set(Value::text("content"), content);
  return fields;
}

bool is_plain_word(std::string_view role) {
  return !role.empty() && role.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == role.npos;
}

void add_message(Conversation& conversation, const Value& value) {
  const Dict* given = value.dict();
  if (!given) throw DataError("message {} isn't an object", conversation.messages.size() + 1);
  const std::string role = text_field(*given, "role").bytes;
  auto fields = std::make_shared<Dict>();
  for (const auto& [key, item] : given->items) {
    const bool is_role = key.text()->bytes == "role";
    fields->items.emplace_back(Value::text(key.text()->bytes),
                               is_role && is_plain_word(role) ? Value::text(role) : item);
  }
  conversation.messages.push_back({fields, role == "assistant"});
}

void add_messages(Conversation& conversation, const Value& value, std::string_view name) {
  if (!value.list()) throw DataError("\"{}\" isn't a list", name);
  for (const Value& message : value.list()->items) add_message(conversation, message);
}

// ShareGPT's names of roles.
void add_turn(Conversation& conversation, const Value& value) {
  const Dict* turn = value.dict();
  if (!turn) throw DataError("turn {} isn't an object", conversation.messages.size() + 1);
  if (turn->named("role")) return add_message(conversation, value);
  const std::string& from = text_field(*turn, "from").bytes;
  const std::pair<std::string_view, std::string_view> roles[] = {
      {"human", "user"},        {"user", "user"},
      {"gpt", "assistant"},     {"assistant", "assistant"},
      {"chatgpt", "assistant"}, {"bing", "assistant"},
      {"bard", "assistant"},    {"system", "system"},
      {"tool", "tool"},         {"function_response", "tool"},
      {"observation", "tool"}};
  const auto role = std::find_if(std::begin(roles), std::end(roles),
                                 [&](const auto& known) { return known.first == from; });
  if (role == std::end(roles))
    throw DataError("\"from\" is \"{}\", which isn't a role known here", from);
  add_message(conversation, message_of(role->second, text_field(*turn, "value")));
}

void add_alpaca(Conversation& conversation, const Dict& line) {
  if (line.named("system")) {
    const MarkedText& system = text_field(line, "system");
    if (!system.empty()) add_message(conversation, message_of("system", system));
  }
  MarkedText question = text_field(line, "instruction");
  if (line.named("input") && !text_field(line, "input").empty()) {
    question.append("\n\n", templates::kFromData);
    question.append(text_field(line, "input"));
  }
  add_message(conversation, message_of("user", question));
  add_message(conversation, message_of("assistant", text_field(line, "output")));
}

std::string role_of(const Message& message) {
  return message.fields.dict()->named("role")->text()->bytes;
}

void check_roles(const Conversation& conversation) {
  bool asked = false, answered = false;
  for (std::size_t i = 0; i < conversation.messages.size(); ++i) {
    const std::string role = role_of(conversation.messages[i]);
    if ((role == "system" || role == "developer") && (asked || answered)) {
      throw DataError("message {} is the system's, which comes first", i + 1);
    }
    if (role == "assistant" && !asked) throw DataError("message {} answers no message", i + 1);
    const bool is_result = role == "tool" || role == "function" || role == "ipython";
    if (is_result && !answered)
      throw DataError("message {} is a tool's result, but nothing called one", i + 1);
    asked |= role == "user" || is_result;
    answered |= role == "assistant";
  }
}

// What follows the last message that isn't the assistant's.
std::size_t prompt_messages(const Conversation& conversation) {
  std::size_t count = conversation.messages.size();
  while (count > 0 && conversation.messages[count - 1].is_answer) --count;
  return count;
}

}  // namespace

Conversation read_conversation(std::string_view json) {
  Value value;
  try {
    value = templates::value_of_json(json, templates::kFromData);
  } catch (const templates::Problem& problem) {
    throw DataError("{}", problem.text);
  }
  const Dict* line = value.dict();
  if (!line) throw DataError("isn't an object");
  Conversation conversation;
  if (const Value* tools = line->named("tools")) conversation.tools = *tools;
  if (const Value* messages = line->named("messages")) {
    add_messages(conversation, *messages, "messages");
  } else if (const Value* turns = line->named("conversations")) {
    if (!turns->list()) throw DataError("\"conversations\" isn't a list");
    for (const Value& turn : turns->list()->items) add_turn(conversation, turn);
  } else if (line->named("instruction")) {
    add_alpaca(conversation, *line);
  } else if (const Value* prompt = line->named("prompt"); prompt && prompt->text()) {
    conversation.is_plain = true;
    conversation.prompt = *prompt->text();
    conversation.completion = text_field(*line, "completion");
    return conversation;
  } else if (prompt && line->named("completion")) {
    add_messages(conversation, *prompt, "prompt");
    conversation.num_prompt_messages = conversation.messages.size();
    add_messages(conversation, *line->named("completion"), "completion");
    check_roles(conversation);
    return conversation;
  } else {
    throw DataError(
        "has none of \"messages\", \"conversations\", \"instruction\" with \"output\", \"prompt\" "
        "with "
        "\"completion\"");
  }
  check_roles(conversation);
  conversation.num_prompt_messages = prompt_messages(conversation);
  return conversation;
}

}  // namespace sherd::data
