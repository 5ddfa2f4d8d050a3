/// Takes a manifest's text apart and puts it together again with a right checksum, as an
/// attacker would.
#pragma once

#include <fmt/core.h>
#include <xxhash.h>

#include <nlohmann/json.hpp>
#include <string>

namespace sherd::test {

inline nlohmann::ordered_json unframed(const std::string& text) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(text);
  json.erase("checksum");
  return json;
}

/// `more` comes, as it is, after the last member.
inline std::string framed(const nlohmann::ordered_json& json, const std::string& more = "") {
  std::string text = json.dump(-1, ' ', true);
  text.pop_back();  // the closing brace
  text += more;
  return text +
         fmt::format("\n,\"checksum\":\"{:016x}\"}}\n", XXH3_64bits(text.data(), text.size()));
}

}  // namespace sherd::test
