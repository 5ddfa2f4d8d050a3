#include <fmt/format.h>

#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_bounds.h"
#include "engine/main/serve/openai.h"

namespace sherd::main {
namespace {

using Json = nlohmann::json;

[[noreturn]] void refuse(const std::string& param, const std::string& expected) {
  throw ApiError(400, fmt::format("{}: {}", param, expected), param);
}

double number(const Json& value, const std::string& key, double least, double most) {
  const double found = value.is_number() ? value.get<double>() : least - 1;
  if (found >= least && found <= most) return found;
  refuse(key, fmt::format("expected a number from {} to {}.", least, most));
}

std::int64_t whole_number(const Json& value, const std::string& key, std::int64_t least) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const bool fits =
      value.is_number_unsigned() ? value.get<std::uint64_t>() <= kMost : value.is_number_integer();
  if (fits && value.get<std::int64_t>() >= least) return value.get<std::int64_t>();
  refuse(key, fmt::format("expected a whole number, at least {}.", least));
}

bool truth(const Json& value, const std::string& key) {
  if (value.is_boolean()) return value.get<bool>();
  refuse(key, "expected true or false.");
}

std::string string_of(const Json& value, const std::string& key) {
  if (value.is_string()) return value.get<std::string>();
  refuse(key, "expected a string.");
}

std::vector<std::string> stops_of(const Json& value) {
  std::vector<std::string> stops;
  for (const Json& stop : value.is_array() ? value : Json::array({value})) {
    stops.push_back(string_of(stop, "stop"));
    if (stops.back().empty()) refuse("stop", "a string is empty.");
  }
  if (stops.size() > 4) refuse("stop", "expected at most 4 strings.");
  return stops;
}

void read_prompt(const Json& value, TextQuery& query) {
  if (value.is_array() && value.size() == 1 && !value[0].is_number()) {
    return read_prompt(value[0], query);
  }
  if (!value.is_array()) {
    query.prompt = string_of(value, "prompt");
    return;
  }
  if (value.empty()) refuse("prompt", "is an empty list.");
  query.ids.emplace();
  for (const Json& id : value) {
    if (!id.is_number()) refuse("prompt", "expected one text; send one request for each.");
    const std::int64_t token = whole_number(id, "prompt", 0);
    if (token > std::numeric_limits<std::int32_t>::max()) refuse("prompt", "no such token.");
    query.ids->push_back(static_cast<std::int32_t>(token));
  }
}

void read_stream_options(const Json& value, TextQuery& query) {
  if (!value.is_object()) refuse("stream_options", "expected an object.");
  for (const auto& [key, option] : value.items()) {
    if (key != "include_usage") refuse("stream_options", fmt::format("unknown key {}.", key));
    query.includes_usage = truth(option, "stream_options.include_usage");
  }
}

// Parameters that must have the value that changes nothing.
const std::map<std::string, std::vector<Json>> kUnchanged = {
    {"n", {1}},
    {"best_of", {1}},
    {"echo", {false}},
    {"logprobs", {false}},
    {"top_logprobs", {0}},
    {"presence_penalty", {0}},
    {"suffix", {""}},
    {"frequency_penalty", {0}},
    {"logit_bias", {Json::object()}},
    {"store", {false}},
    {"tools", {Json::array()}},
    {"response_format", {Json{{"type", "text"}}}}};

void read_value(const std::string& key, const Json& value, TextQuery& query) {
  const bool is_length = key == "max_tokens" || (query.is_chat && key == "max_completion_tokens");
  if (key == "model") {
    query.model = string_of(value, key);
  } else if (key == "prompt" && !query.is_chat) {
    read_prompt(value, query);
  } else if (key == "messages" && query.is_chat) {
    if (!value.is_array() || value.empty()) refuse(key, "expected a list of messages.");
    query.conversation =
        Json{{"messages", value}}.dump(-1, ' ', false, Json::error_handler_t::replace);
  } else if (is_length) {
    query.max_tokens = whole_number(value, key, 1);
  } else if (key == "temperature") {
    query.temperature = number(value, key, 0, 2);
  } else if (key == "top_p") {
    query.top_p = number(value, key, 0, 1);
  } else if (key == "top_k") {
    query.top_k = whole_number(value, key, 0);
  } else if (key == "seed") {
    query.seed = static_cast<std::uint64_t>(whole_number(value, key, 0));
  } else if (key == "stop") {
    query.stops = stops_of(value);
  } else if (key == "stream") {
    query.streams = truth(value, key);
  } else if (key == "stream_options") {
    read_stream_options(value, query);
  } else if (key != "user" && key != "metadata") {
    const auto found = kUnchanged.find(key);
    if (found == kUnchanged.end()) refuse(key, "this server doesn't know this parameter.");
    for (const Json& allowed : found->second) {
      if (value == allowed) return;
    }
    refuse(key, fmt::format("this server supports only {}.", found->second[0].dump()));
  }
}

}  // namespace

TextQuery read_query(const std::string& body, bool is_chat) {
  try {
    check_json_bounds(body, "the request");
  } catch (const DataError& error) {
    throw ApiError(400, error.what());
  }
  const Json json = Json::parse(body, nullptr, false);
  if (!json.is_object()) throw ApiError(400, "expected a JSON object as the request's body.");
  TextQuery query{.is_chat = is_chat};
  for (const auto& [key, value] : json.items()) {
    if (!value.is_null()) read_value(key, value, query);
  }
  const Json length = json.value("max_completion_tokens", Json());
  const Json other = json.value("max_tokens", Json());
  if (is_chat && !length.is_null() && !other.is_null() && length != other) {
    refuse("max_completion_tokens", "max_tokens is given, too, and is another number.");
  }
  const char* text = is_chat ? "messages" : "prompt";
  if (!json.contains(text) || json[text].is_null()) refuse(text, "is missing.");
  if (query.includes_usage && !query.streams) refuse("stream_options", "needs stream: true.");
  return query;
}

}  // namespace sherd::main
