/// Token ids and text, both ways: a prompt becomes ids, sampled ids become something to read.
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
  /// byte or control character as \xNN or \uNNNN. Ids that stand for no text show as <id>.
  virtual std::string text(std::span<const std::int32_t> ids) const = 0;

  /// The text itself, for files: nothing is escaped, and bytes that aren't UTF-8 stay as they are or
  /// become U+FFFD. Ids that stand for no text are left out.
  virtual std::string exact_text(std::span<const std::int32_t> ids) const { return text(ids); }

  /// Bytes of text that a token stands for; 0 for none.
  virtual std::int64_t num_bytes(std::int32_t id) const {
    return std::ssize(exact_text(std::span(&id, 1)));
  }

  /// What stands before a document, whatever its text: the beginning token of some tokenizers.
  virtual std::vector<std::int32_t> before_document() const { return {}; }

  /// Errors   UsageError for text that has no ids here (an unknown character; for `bin`, which
  ///          knows no text, anything but ids separated by spaces).
  virtual std::vector<std::int32_t> ids(std::string_view text) const = 0;

  /// The token that stands between two texts that are read as one: a line break where there is
  /// one. None where no id means that (`bin`, whose files hold their own).
  virtual std::optional<std::int32_t> separator() const { return std::nullopt; }

  /// The characters that ids 0, 1, ... stand for; empty where a token isn't a character.
  virtual std::vector<char32_t> characters() const { return {}; }
};

std::unique_ptr<const TokenText> make_byte_text(std::int64_t vocab_size);
std::unique_ptr<const TokenText> make_character_text(std::vector<char32_t> characters);
std::unique_ptr<const TokenText> make_id_text(std::int64_t vocab_size);
/// Prompts may spell special tokens; in text they show as they are spelled. `separator`: see above;
/// the tokenizer's end token where files are texts, none where they are tokens already.
std::unique_ptr<const TokenText> make_tokenizer_text(
    std::shared_ptr<const tokenizer::Tokenizer> tokenizer, std::optional<std::int32_t> separator);

}  // namespace sherd::data
