/// A place in a JSON file, for strict reading: a wrong type, missing key or unknown key is a
/// DataError that names the place.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::tokenizer {

class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string place)
      : value_(value), place_(std::move(place)) {}

  const nlohmann::json& value() const { return value_; }
  const std::string& place() const { return place_; }

  bool has(const char* key) const;  ///< false if null
  JsonNode operator[](const std::string& key) const;
  std::vector<JsonNode> elements() const;

  std::string text() const;
  bool flag(const char* key, bool missing) const;
  std::uint64_t number() const;
  /// "type" of a part.
  std::string type() const;
  /// Refuses keys other than these and "type".
  void only(std::initializer_list<std::string_view> keys) const;
  [[noreturn]] void refuse(std::string_view problem) const;

 private:
  const nlohmann::json& value_;
  std::string place_;
};

}  // namespace sherd::tokenizer
