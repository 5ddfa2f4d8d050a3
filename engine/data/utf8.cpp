#include "engine/data/utf8.h"

namespace sherd::data {

CodePoint decode_utf8(std::span<const std::uint8_t> bytes, std::size_t offset) {
  const std::uint8_t lead = bytes[offset];
  if (lead < 0x80) return {lead, 1};
  const int length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || bytes.size() - offset < static_cast<std::size_t>(length)) {
    return {};
  }
  char32_t value = lead & (0x7fu >> length);
  for (int i = 1; i < length; ++i) {
    const std::uint8_t next = bytes[offset + static_cast<std::size_t>(i)];
    if ((next & 0xc0) != 0x80) return {};
    value = (value << 6) | (next & 0x3fu);
  }
  const bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
  const bool surrogate = value >= 0xd800 && value < 0xe000;
  if (overlong || surrogate || value >= kNumCodePoints) return {};
  return {value, length};
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xc0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    put(0xe0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3f));
    put(0x80 | (code_point & 0x3f));
  } else {
    put(0xf0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3f));
    put(0x80 | ((code_point >> 6) & 0x3f));
    put(0x80 | (code_point & 0x3f));
  }
}

}  // namespace sherd::data
