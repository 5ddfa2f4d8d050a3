#include "engine/data/tokenizer/byte_alphabet.h"

#include <array>

#include "engine/data/utf8.h"

namespace sherd::tokenizer {
namespace {

constexpr bool prints(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

constexpr std::array<char16_t, 256> kCharacters = [] {
  std::array<char16_t, 256> characters{};
  int num_others = 0;
  for (int byte = 0; byte < 256; ++byte) {
    characters[static_cast<std::size_t>(byte)] =
        static_cast<char16_t>(prints(byte) ? byte : 0x100 + num_others++);
  }
  return characters;
}();

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

char32_t character_of_byte(std::uint8_t byte) {
  return kCharacters[byte];
}

std::optional<std::string> bytes_of_alphabet(std::string_view text) {
  static const std::array<std::int16_t, 0x200> bytes = [] {
    std::array<std::int16_t, 0x200> table;
    table.fill(-1);
    for (std::size_t byte = 0; byte < 256; ++byte) {
      table[kCharacters[byte]] = static_cast<std::int16_t>(byte);
    }
    return table;
  }();
  std::string result;
  const auto spelled = data::as_bytes(text);
  for (std::size_t offset = 0; offset < spelled.size();) {
    const data::CodePoint point = data::decode_utf8(spelled, offset);
    if (point.length == 0 || point.value >= bytes.size() || bytes[point.value] < 0) {
      return std::nullopt;
    }
    result.push_back(static_cast<char>(bytes[point.value]));
    offset += static_cast<std::size_t>(point.length);
  }
  return result;
}

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const int high = hex_digit(token[3]);
  const int low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace sherd::tokenizer
