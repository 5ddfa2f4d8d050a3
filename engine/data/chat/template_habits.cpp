#include "engine/data/chat/template_habits.h"

#include <optional>

#include "engine/data/chat/message_fields.h"
#include "engine/data/template/json_value.h"

namespace sherd::data {
namespace {

using templates::Dict;
using templates::List;
using templates::MarkedText;
using templates::Value;

constexpr std::string_view kArguments = R"({"key": "value"})";

std::vector<Value> messages_of(std::string_view json) {
  return templates::value_of_json(json, 0).list()->items;
}

// How a template prints arguments: as JSON, or in a way of its own such as <arg>.
enum class Shown : std::uint8_t { kNot, kOwnWay, kAsJson };

Shown shown(const std::optional<std::string>& text) {
  if (!text || text->find("value") == text->npos) return Shown::kNot;
  if (text->find(kArguments) != text->npos) return Shown::kAsJson;
  const bool as_python = text->find("'key': 'value'") != text->npos;
  return as_python ? Shown::kNot : Shown::kOwnWay;
}

Value joined_parts(const List& parts) {
  MarkedText text;
  for (const Value& part : parts.items) {
    const Value* said = part.dict() ? part.dict()->named("text") : &part;
    if (said && said->text()) text.append(*said->text());
  }
  return text;
}

bool are_texts(const List& parts) {
  for (const Value& part : parts.items) {
    const Value* said = part.dict() ? part.dict()->named("text") : &part;
    if (!said || !said->text()) return false;
  }
  return true;
}

Value with(const Dict& dict, std::string_view name, Value value) {
  auto copy = std::make_shared<Dict>(dict);
  copy->set(Value::text(std::string(name)), std::move(value));
  return copy;
}

Value adapted_arguments(const Value& arguments, const TemplateHabits& habits) {
  const MarkedText* text = arguments.text();
  if (text && !habits.takes_arguments_as_text && habits.takes_arguments_as_object) {
    const Value object = parsed_if_text(arguments, "a tool call's \"arguments\"");
    return templates::with_mark(object, kOfToolCalls);
  }
  if (arguments.dict() && !habits.takes_arguments_as_object && habits.takes_arguments_as_text) {
    return templates::to_json(arguments, {.item_separator = ", "});
  }
  return arguments;
}

// {"function": {"arguments"}} or {"arguments"}.
Value adapted_call(const Value& call, const TemplateHabits& habits) {
  const Dict* dict = call.dict();
  if (!dict) return call;
  const Value* function = present(*dict, "function");
  if (function && function->dict()) return with(*dict, "function", adapted_call(*function, habits));
  const Value* arguments = present(*dict, "arguments");
  if (!arguments) return call;
  return with(*dict, "arguments", adapted_arguments(*arguments, habits));
}

}  // namespace

TemplateHabits habits_of(const std::function<std::string(const std::vector<Value>& messages,
                                                         const Value& tools)>& render) {
  const auto shown_by = [&](std::string_view json, bool tools) -> std::optional<std::string> {
    const Value tool = templates::value_of_json(
        R"([{"type": "function", "function": {"name": "f", "description": "d",
            "parameters": {"type": "object", "properties": {}}}}])",
        0);
    try {
      return render(messages_of(json), tools ? tool : Value(templates::None{}));
    } catch (const DataError&) {
      return std::nullopt;
    }
  };
  const auto call = [&](std::string_view arguments) {
    return shown(shown_by(
        fmt::format(R"([{{"role": "user", "content": "a"}}, {{"role": "assistant", "content": "",
            "tool_calls": [{{"id": "call00001", "type": "function",
                           "function": {{"name": "f", "arguments": {}}}}}]}},
            {{"role": "tool", "tool_call_id": "call00001", "name": "f", "content": "r"}}])",
                    arguments),
        true));
  };
  TemplateHabits habits;
  const auto text = shown_by(R"([{"role": "user", "content": "probe"}])", false);
  const auto parts =
      shown_by(R"([{"role": "user", "content": [{"type": "text", "text": "probe"}]}])", false);
  habits.takes_parts = !text || text == parts;
  habits.takes_arguments_as_text = call(R"("{\"key\": \"value\"}")") == Shown::kAsJson;
  habits.takes_arguments_as_object = call(kArguments) != Shown::kNot;
  return habits;
}

Value adapted(const Value& fields, const TemplateHabits& habits) {
  Value result = fields;
  const Value* content = present(*fields.dict(), "content");
  if (content && content->list() && !habits.takes_parts && are_texts(*content->list())) {
    result = with(*result.dict(), "content", joined_parts(*content->list()));
  }
  const Value* calls = present(*fields.dict(), "tool_calls");
  const bool takes_both = habits.takes_arguments_as_text && habits.takes_arguments_as_object;
  if (calls && calls->list() && !takes_both) {
    std::vector<Value> items;
    for (const Value& call : calls->list()->items) items.push_back(adapted_call(call, habits));
    result = with(*result.dict(), "tool_calls", Value::list(std::move(items)));
  }
  return result;
}

}  // namespace sherd::data
