/// Text that is shown while it is generated: whole characters only, and nothing after a stop
/// string.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/token_text.h"

namespace sherd::engine {

/// How ids become text: TokenText::text for a terminal, TokenText::exact_text for a file.
using TextOf = std::function<std::string(std::span<const std::int32_t> ids)>;

/// The part of `all` after `prompt`. If the prompt's last bytes begin a character, the part has the
/// whole character.
std::string text_after(std::string_view prompt, std::string_view all);

class TextStream {
 public:
  /// `prompt`: ids before the text, which its beginning depends on (a tokenizer may drop a text's
  /// first space). An empty stop string never stops.
  TextStream(TextOf text_of, std::vector<std::int32_t> prompt, std::vector<std::string> stops);

  /// Adds a token. Returns false if the text has come to a stop string.
  bool add(std::int32_t token);
  /// The text after the prompt so far, up to the stop string.
  const std::string& text() const { return text_; }
  bool stopped() const { return stopped_; }

  /// The text that can't change any more and wasn't returned before. Incomplete characters, and
  /// what may be the beginning of a stop string, are kept back until `is_end`.
  std::string take(bool is_end);

 private:
  TextOf text_of_;
  std::vector<std::int32_t> ids_;
  std::string prompt_;
  std::vector<std::string> stops_;
  std::string text_;
  std::size_t taken_ = 0;
  bool stopped_ = false;
};

}  // namespace sherd::engine
