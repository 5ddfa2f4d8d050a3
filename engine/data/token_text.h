/// Converts between token ids and text: a prompt becomes ids, sampled ids become readable text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/tokenizer.h"

namespace sherd::data {

class TokenText {
 public:
  virtual ~TokenText() = default;

  /// Text that is safe on a terminal: printable UTF-8, newlines and tabs as they are, any other
  /// byte or control character as \xNN or \uNNNN. Ids without text show as <id>.
  virtual std::string text(std::span<const std::int32_t> ids) const = 0;

  /// The exact text, for files: nothing is escaped. Bytes that aren't UTF-8 stay as they are or
  /// become U+FFFD. Ids without text are left out.
  virtual std::string exact_text(std::span<const std::int32_t> ids) const { return text(ids); }

  /// Bytes of text that a token represents; 0 for none.
  virtual std::int64_t num_bytes(std::int32_t id) const {
    return std::ssize(exact_text(std::span(&id, 1)));
  }

  /// Tokens before every document: the beginning token of some tokenizers.
  virtual std::vector<std::int32_t> before_document() const { return {}; }

  /// Errors   UsageError for text without ids (an unknown character; for `bin`, which has no text,
  ///          anything but ids separated by spaces).
  virtual std::vector<std::int32_t> ids(std::string_view text) const = 0;

  /// The token between two joined texts: a line break, if there is one. None if no id means that
  /// (`bin`, whose files contain their own separators).
  virtual std::optional<std::int32_t> separator() const { return std::nullopt; }

  /// The characters of ids 0, 1, ...; empty if tokens aren't characters.
  virtual std::vector<char32_t> characters() const { return {}; }
};

/// Any text as TokenText::text would show it.
std::string terminal_text(std::string_view text);

std::unique_ptr<const TokenText> make_byte_text(std::int64_t vocab_size);
std::unique_ptr<const TokenText> make_character_text(std::vector<char32_t> characters);
std::unique_ptr<const TokenText> make_id_text(std::int64_t vocab_size);
/// Prompts may spell special tokens; in text they appear as spelled. `separator`: see above. It is
/// the tokenizer's end token if files are texts, and none if they are token files.
std::unique_ptr<const TokenText> make_tokenizer_text(
    std::shared_ptr<const tokenizer::Tokenizer> tokenizer, std::optional<std::int32_t> separator);

}  // namespace sherd::data
