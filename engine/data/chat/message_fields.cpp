#include "engine/data/chat/message_fields.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "engine/data/template/json_value.h"

namespace sherd::data {
namespace {

using templates::Dict;
using templates::List;
using templates::MarkedText;
using templates::Value;

// Where in the conversation, for messages.
std::string place(const Conversation& conversation) {
  return fmt::format("message {}", conversation.messages.size() + 1);
}

bool is_plain_word(std::string_view role) {
  return !role.empty() && role.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == role.npos;
}

bool is_result(std::string_view role) {
  return role == "tool" || role == "function" || role == "ipython";
}

// Fields are looked for one after the other.
constexpr std::size_t kMostFields = 1000;

constexpr std::string_view kFunctionCall = "function_call";

// ShareGPT's names, whatever their case. LLaMA-Factory's function_call is an answer that calls
// tools.
std::string_view role_of_turn(std::string_view from, const std::string& where) {
  constexpr std::pair<std::string_view, std::string_view> kRoles[] = {
      {"human", "user"},
      {"user", "user"},
      {"gpt", "assistant"},
      {"assistant", "assistant"},
      {"chatgpt", "assistant"},
      {"bing", "assistant"},
      {"bard", "assistant"},
      {"model", "assistant"},
      {"system", "system"},
      {"developer", "developer"},
      {"tool", "tool"},
      {"function_response", "tool"},
      {"tool_response", "tool"},
      {"observation", "tool"},
      {"tool_call", kFunctionCall},
      {kFunctionCall, kFunctionCall}};
  std::string name(from);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::replace(name.begin(), name.end(), '-', '_');
  for (const auto& [known, role] : kRoles) {
    if (known == name) return role;
  }
  throw UnfitRow(unfit::kUnknownRole, "{} is from \"{}\", which isn't a known role", where, from);
}

Value object(std::vector<std::pair<std::string_view, Value>> items) {
  auto dict = std::make_shared<Dict>();
  for (auto& [name, value] : items) {
    dict->add(Value::text(std::string(name)), std::move(value));
  }
  return dict;
}

Value tool_call_of(const Value& function, const std::string& where) {
  const Dict* dict = function.dict();
  if (!dict || !present(*dict, "name") || !dict->named("name")->text()) {
    throw UnfitRow(unfit::kWrongType, "{} has a function call without a \"name\"", where);
  }
  const Value* arguments = present(*dict, "arguments");
  return object({{"type", Value::text("function")},
                 {"function", object({{"name", *dict->named("name")},
                                      {"arguments", arguments ? *arguments : object({})}})}});
}

// One call, or a list of them: {"name", "arguments"}.
Value tool_calls_of(const Value& functions, const std::string& where) {
  std::vector<Value> calls;
  if (const List* list = functions.list()) {
    for (const Value& one : list->items) calls.push_back(tool_call_of(one, where));
  } else {
    calls.push_back(tool_call_of(functions, where));
  }
  return Value::list(std::move(calls));
}

// Whether the message has a loss. 0 and false say no, 1 and true yes.
bool flag_of(const Value& value, std::string_view name, const std::string& where) {
  const bool known = value.is_number() && (value.number() == 0.0 || value.number() == 1.0);
  if (!known) {
    throw UnfitRow(unfit::kUnknownMask, "the \"{}\" of {} is neither 0 nor 1", name, where);
  }
  return value.number() == 1.0;
}

void check_part(const Value& part, const std::string& where) {
  if (part.text()) return;
  const Dict* dict = part.dict();
  const Value* type = dict ? present(*dict, "type") : nullptr;
  if (!type || !type->text()) {
    throw UnfitRow(unfit::kWrongType, "a part of {}'s \"content\" has no \"type\"", where);
  }
  if (type->text()->bytes == "text" && present(*dict, "text") && dict->named("text")->text())
    return;
  throw UnfitRow(unfit::kMedia, "{} has a part of the type \"{}\", which isn't read", where,
                 type->text()->bytes);
}

// A text, or a list of parts that are texts; a tool's result may be anything.
void check_content(const Value& content, std::string_view role, const std::string& where) {
  if (content.text() || is_result(role)) return;
  const List* parts = content.list();
  if (!parts) {
    throw UnfitRow(unfit::kWrongType, "the \"content\" of {} is neither text nor a list", where);
  }
  for (const Value& part : parts->items) check_part(part, where);
}

// Reads one message's fields one by one.
class MessageReader {
 public:
  MessageReader(Conversation& conversation, const Dict& given)
      : conversation_(conversation), given_(given), where_(place(conversation)) {
    const bool is_turn = !present(given, "role") && present(given, "from");
    role_key_ = is_turn ? "from" : "role";
    content_key_ = !present(given, "content") && present(given, "value") ? "value" : "content";
    const Value* named = present(given, role_key_);
    if (!named || !named->text()) {
      throw UnfitRow(unfit::kWrongType, "{} has no \"role\" that is a text", where_);
    }
    const MarkedText& role = *named->text();
    role_ = is_turn ? role_of_turn(role.view(), where_) : role.view();
    calls_ = role_ == kFunctionCall;
    if (calls_) role_ = "assistant";
    // Letters alone may be part of a special token that the template spells.
    role_value_ = is_plain_word(role_) ? Value::text(std::string(role_)) : Value(role);
  }

  void read() {
    if (given_.items.size() > kMostFields) {
      throw UnfitRow(unfit::kWrongType, "{} has more than {} fields", where_, kMostFields);
    }
    for (const auto& [key, value] : given_.items) {
      if (!value.is_none()) read_field(key.text()->bytes, value);
    }
    const Value* content = fields_->named("content");
    const Value* calls = fields_->named("tool_calls");
    const bool calls_something = calls && truth(*calls);
    if (content) {
      check_content(*content, role_, where_);
    } else if (!calls_something) {
      throw UnfitRow(unfit::kNoContent, "{} has no \"{}\"", where_, content_key_);
    }
    message_.fields = fields_;
    message_.is_answer = role_ == "assistant";
    conversation_.messages.push_back(std::move(message_));
  }

 private:
  void read_field(const std::string& key, const Value& value) {
    if (key == role_key_) return put("role", role_value_);
    if (key == content_key_) return calls_ ? put_calls(value) : put_content(value);
    if (key == "weight" || key == "train" || key == "training" || key == "loss") {
      message_.is_trained &= flag_of(value, key, where_);
    } else if (key == "mask" || key == "loss_mask" || key == "train_detail" ||
               key == "training_detail") {
      throw UnfitRow(unfit::kUnknownMask,
                     "the \"{}\" of {} isn't read; \"weight\": 0 or 1 says whether a message is "
                     "trained on",
                     key, where_);
    } else if (key == "function_call" && role_ == "assistant") {
      put_calls(value);
    } else if (key == "tool_calls") {
      put_watched(key, with_text_parsed(value, key), kOfToolCalls);
    } else if (key == "tool_call_id") {
      put(key, value);  // which answer it belongs to: few templates show it
    } else {
      put_watched(key, value, key == "name" ? kOfName : kOfOther);
    }
  }

  void put(const std::string& key, Value value) {
    fields_->set(Value::text(key), std::move(value));
  }
  void put_content(const Value& value) {
    const bool aside = role_ != "user" && role_ != "assistant";
    if (!aside || !has_text(value)) return put("content", value);
    put("content", templates::with_mark(value, kOfAside));
    watch(conversation_, fmt::format("messages of \"{}\"", role_), kOfAside);
  }
  void put_calls(const Value& value) {
    if (fields_->named("tool_calls")) return;
    put_watched("tool_calls", tool_calls_of(with_text_parsed(value, kFunctionCall), where_),
                kOfToolCalls);
  }
  void put_watched(const std::string& key, const Value& value, std::uint8_t mark) {
    if (fields_->named(key)) return;
    const bool shows = has_text(value);
    watch(conversation_, key, shows ? mark : 0);
    put(key, shows ? templates::with_mark(value, mark) : value);
  }
  Value with_text_parsed(const Value& value, std::string_view key) const {
    return parsed_if_text(value, fmt::format("{}'s {}", where_, key));
  }

  Conversation& conversation_;
  const Dict& given_;
  std::string where_;
  std::string_view role_key_, content_key_, role_;
  Value role_value_;
  bool calls_ = false;  ///< the content is a function call
  std::shared_ptr<Dict> fields_ = std::make_shared<Dict>();
  Message message_;
};

}  // namespace

void add_message(Conversation& conversation, const Value& value) {
  const Dict* given = value.dict();
  if (!given) throw UnfitRow(unfit::kWrongType, "{} isn't an object", place(conversation));
  MessageReader(conversation, *given).read();
}

void add_message(Conversation& conversation, std::string_view role, const MarkedText& content) {
  add_message(conversation,
              object({{"role", Value::text(std::string(role))}, {"content", content}}));
}

std::string_view role_of(const Message& message) {
  return message.fields.dict()->named("role")->text()->view();
}

Value parsed_if_text(const Value& value, std::string_view field) {
  if (!value.text()) return value;
  try {
    return templates::value_of_json(value.text()->view(), templates::kFromData);
  } catch (const templates::Problem& problem) {
    throw UnfitRow(unfit::kWrongType, "{} is a text that is {}", field, problem.text);
  }
}

const Value* present(const Dict& dict, std::string_view name) {
  const Value* value = dict.named(name);
  return value && !value->is_none() ? value : nullptr;
}

const MarkedText& text_field(const Dict& dict, std::string_view name) {
  const Value* value = present(dict, name);
  if (!value || !value->text()) {
    throw UnfitRow(unfit::kWrongType, "\"{}\" {}", name,
                   value              ? "isn't a text"
                   : dict.named(name) ? "is null"
                                      : "is missing");
  }
  return *value->text();
}

bool has_text(const Value& value) {
  if (const MarkedText* text = value.text()) return !text->empty();
  if (const List* list = value.list()) return std::ranges::any_of(list->items, has_text);
  if (const Dict* dict = value.dict()) {
    return std::ranges::any_of(dict->items, [](const auto& item) { return has_text(item.second); });
  }
  return false;
}

void watch(Conversation& conversation, std::string_view name, std::uint8_t mark) {
  for (WatchedField& known : conversation.watched) {
    if (known.name != name) continue;
    known.mark = known.mark == 0 ? mark : known.mark;
    return;
  }
  if (conversation.watched.size() == kMostFields) {
    throw UnfitRow(unfit::kWrongType, "has more than {} different fields", kMostFields);
  }
  conversation.watched.push_back({std::string(name), mark});
}

}  // namespace sherd::data
