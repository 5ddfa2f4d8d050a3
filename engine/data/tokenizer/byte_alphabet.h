/// GPT-2's printable characters for bytes: files of byte-level vocabularies spell every byte as one
/// of 256 characters. Printable bytes represent themselves (as Latin-1); the other 68 are U+0100,
/// U+0101, ... in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sherd::tokenizer {

/// The character for a byte.
char32_t character_of_byte(std::uint8_t byte);

/// The bytes that `text` spells, if all its characters are in the alphabet.
std::optional<std::string> bytes_of_alphabet(std::string_view text);

/// The byte that a token such as "<0x0A>" represents, or -1.
int byte_of_token(std::string_view token);

}  // namespace sherd::tokenizer
