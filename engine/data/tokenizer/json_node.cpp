#include "engine/data/tokenizer/json_node.h"

#include <algorithm>

#include "core/error.h"

namespace sherd::tokenizer {

void JsonNode::refuse(std::string_view problem) const {
  throw DataError("{}: {}", place_, problem);
}

bool JsonNode::has(const char* key) const {
  return value_.is_object() && value_.contains(key) && !value_[key].is_null();
}

JsonNode JsonNode::operator[](const std::string& key) const {
  if (!value_.is_object()) refuse("expected an object.");
  if (!value_.contains(key)) refuse(fmt::format("\"{}\" is missing.", key.substr(0, 64)));
  return {value_[key], place_ + "." + key.substr(0, 64)};
}

std::vector<JsonNode> JsonNode::elements() const {
  if (!value_.is_array()) refuse("expected a list.");
  std::vector<JsonNode> nodes;
  for (std::size_t i = 0; i < value_.size(); ++i) {
    nodes.emplace_back(value_[i], fmt::format("{}[{}]", place_, i));
  }
  return nodes;
}

std::string JsonNode::text() const {
  if (!value_.is_string()) refuse("expected a string.");
  return value_.get<std::string>();
}

bool JsonNode::flag(const char* key, bool missing) const {
  if (!has(key)) return missing;
  if (!value_[key].is_boolean()) refuse(fmt::format("\"{}\" isn't true or false.", key));
  return value_[key].get<bool>();
}

std::uint64_t JsonNode::number() const {
  if (!value_.is_number_unsigned()) refuse("expected a whole number from 0.");
  return value_.get<std::uint64_t>();
}

std::string JsonNode::type() const {
  const std::string type = (*this)["type"].text();
  return type.substr(0, 64);
}

void JsonNode::only(std::initializer_list<std::string_view> keys) const {
  if (!value_.is_object()) refuse("expected an object.");
  for (const auto& [key, value] : value_.items()) {
    if (key == "type" || std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    refuse(fmt::format("\"{}\" isn't a supported key.", key.substr(0, 64)));
  }
}

}  // namespace sherd::tokenizer
