/// Texts in a message between processes, each preceded by its length in 32 bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace sherd::sharding {

inline void append(std::string& text, std::uint32_t number) {
  text.append(reinterpret_cast<const char*>(&number), sizeof number);
}
inline std::uint32_t number_at(std::string_view text) {
  std::uint32_t number = 0;
  std::memcpy(&number, text.data(), sizeof number);
  return number;
}
/// Reads a text preceded by its length; `from` keeps the rest. False if `from` is too short.
inline bool take(std::string_view& from, std::string& text) {
  if (from.size() < 4 || from.size() - 4 < number_at(from)) return false;
  text = from.substr(4, number_at(from));
  from.remove_prefix(4 + text.size());
  return true;
}
inline void put(std::string& to, std::string_view text) {
  append(to, static_cast<std::uint32_t>(text.size()));
  to += text;
}

}  // namespace sherd::sharding
