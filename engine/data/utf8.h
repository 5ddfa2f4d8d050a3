/// Strict UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF (The Unicode Standard 15,
/// table 3-7).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace sherd::data {

inline constexpr std::size_t kNumCodePoints = 0x110000;

struct CodePoint {
  char32_t value = 0;
  int length = 0;  ///< in bytes; 0 if the bytes there aren't UTF-8
};

/// The code point that starts at `bytes[offset]`, offset < bytes.size().
CodePoint decode_utf8(std::span<const std::uint8_t> bytes, std::size_t offset);

void append_utf8(std::string& text, char32_t code_point);

inline std::span<const std::uint8_t> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

}  // namespace sherd::data
