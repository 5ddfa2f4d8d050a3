#include "engine/data/chat/preference_row.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sherd::data {
namespace {

using Json = nlohmann::ordered_json;

Json parsed(std::string_view text) {
  static constexpr int kMostDeep = 100;  // as in engine/data/template/json_value.cpp
  const auto limit = [](int depth, Json::parse_event_t, const Json&) {
    if (depth > kMostDeep) {
      throw UnfitRow(unfit::kNotJson, "is nested more than {} deep", kMostDeep);
    }
    return true;
  };
  Json row = Json::parse(text, limit, /*allow_exceptions=*/false);
  if (row.is_discarded()) throw UnfitRow(unfit::kNotJson, "isn't JSON");
  if (!row.is_object()) throw UnfitRow(unfit::kNoForm, "isn't an object");
  return row;
}

bool has(const Json& row, const char* name) {
  return row.contains(name) && !row.at(name).is_null();
}

const Json& field(const Json& row, const char* name) {
  if (has(row, name)) return row.at(name);
  if (row.contains(name)) throw UnfitRow(unfit::kNoForm, "has a \"{}\" that is null", name);
  std::string names;
  for (const auto& [key, value] : row.items()) {
    if (names.size() > 60) break;
    names += (names.empty() ? "\"" : ", \"") + key.substr(0, 40) + "\"";
  }
  throw UnfitRow(unfit::kNoForm, "has no \"{}\"; it has {}", name,
                 names.empty() ? "nothing" : names);
}

// A message alone is a list of one.
Json listed(const Json& value) {
  return value.is_object() ? Json::array({value}) : value;
}

Json answer(const Json& row, const char* name) {
  Json value = listed(field(row, name));
  if (!value.is_string() && !value.is_array()) {
    throw UnfitRow(unfit::kWrongType, "\"{}\" is neither a text nor a list of messages", name);
  }
  if (value.empty() || value == "") throw UnfitRow(unfit::kNoAnswer, "\"{}\" is empty", name);
  for (const Json& message : value.is_array() ? value : Json::array()) {
    const bool is_empty = message.is_object() && message.contains("content") &&
                          message.at("content") == "" && !has(message, "tool_calls");
    if (is_empty) throw UnfitRow(unfit::kNoAnswer, "\"{}\" has an empty message", name);
  }
  return value;
}

// OpenAI's names.
Json with_usual_names(const Json& row) {
  if (!row.contains("preferred_output")) return row;
  Json usual = {{"chosen", answer(row, "preferred_output")},
                {"rejected", answer(row, "non_preferred_output")}};
  const Json& input = field(row, "input");
  if (!input.is_object()) throw UnfitRow(unfit::kWrongType, "\"input\" isn't an object");
  usual["prompt"] = field(input, "messages");
  if (has(input, "tools")) usual["tools"] = input.at("tools");
  return usual;
}

// What two lists of messages begin with becomes the prompt.
void take_common_prompt(Json& row, Json& chosen, Json& rejected) {
  std::size_t common = 0;
  const std::size_t most = std::min(chosen.size(), rejected.size());
  while (common < most && chosen[common] == rejected[common]) ++common;
  if (common == 0) {
    throw UnfitRow(unfit::kNoForm,
                   "has no \"prompt\", and \"chosen\" and \"rejected\" begin with different "
                   "messages");
  }
  if (common == most) {
    throw UnfitRow(unfit::kNoAnswer, "\"{}\" has no answer of its own",
                   chosen.size() == common ? "chosen" : "rejected");
  }
  const auto end = static_cast<std::ptrdiff_t>(common);
  row["prompt"] = Json(chosen.begin(), chosen.begin() + end);
  chosen.erase(chosen.begin(), chosen.begin() + end);
  rejected.erase(rejected.begin(), rejected.begin() + end);
}

bool repeats_prompt(const Json& prompt, const Json& messages) {
  return prompt.is_string() && messages.is_array() && messages[0].is_object() &&
         messages[0].contains("content") && messages[0].at("content") == prompt;
}

// Without what would be read before the prompt and its completion, such as UltraFeedback's
// "messages", which repeat the chosen answer.
std::string with_completion(Json row, const Json& completion) {
  for (const char* other : {"messages", "conversations", "instruction", "label", "kto_tag"}) {
    row.erase(other);
  }
  row["completion"] = completion;
  return row.dump(-1, ' ', false, Json::error_handler_t::replace);
}

PreferenceRow read_pair(const Json& given) {
  Json row = with_usual_names(given);
  Json chosen = answer(row, "chosen"), rejected = answer(row, "rejected");
  if (chosen == rejected) {
    throw UnfitRow(unfit::kEqualSides, "\"chosen\" and \"rejected\" are equal");
  }
  if (chosen.is_string() != rejected.is_string()) {
    throw UnfitRow(unfit::kWrongType, "one of \"chosen\" and \"rejected\" is a text, one isn't");
  }
  if (has(row, "prompt") && repeats_prompt(row.at("prompt"), chosen) &&
      repeats_prompt(row.at("prompt"), rejected)) {
    row.erase("prompt");
  }
  if (!has(row, "prompt")) {
    if (chosen.is_string()) field(row, "prompt");  // throws
    take_common_prompt(row, chosen, rejected);
  }
  row["prompt"] = listed(row.at("prompt"));
  if (row["prompt"].is_string() != chosen.is_string()) {
    throw UnfitRow(unfit::kWrongType, "one of \"prompt\" and \"chosen\" is a text, one isn't");
  }
  row.erase("chosen");
  row.erase("rejected");
  PreferenceRow result;
  result.answers = {with_completion(row, chosen), with_completion(row, rejected)};
  return result;
}

PreferenceRow read_judged(const Json& given) {
  Json row = given;
  const Json& label = field(row, "label");
  if (!label.is_boolean()) throw UnfitRow(unfit::kWrongType, "\"label\" isn't true or false");
  PreferenceRow result;
  result.is_wanted = label.get<bool>();
  row["prompt"] = listed(field(row, "prompt"));
  const Json completion = answer(row, "completion");
  row.erase("label");
  result.answers = {with_completion(row, completion)};
  return result;
}

}  // namespace

PreferenceRow read_preference(std::string_view json, ExampleKind kind) {
  const Json row = parsed(json);
  return kind == ExampleKind::kPair ? read_pair(row) : read_judged(row);
}

std::string with_completion_of(const std::string& row, const std::string& other) {
  const Json own = Json::parse(row), from = Json::parse(other);
  const Json& completion = from.at("completion");
  if (completion.is_string() != own.at("completion").is_string()) return "";
  return with_completion(own, completion);
}

}  // namespace sherd::data
