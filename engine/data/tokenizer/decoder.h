/// Tokens become text again.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace sherd::tokenizer {

struct ByteLevelDecoder {};     ///< characters of the byte alphabet become bytes
struct ByteFallbackDecoder {};  ///< runs of <0xXX> become bytes
struct FuseDecoder {};          ///< all tokens become one
struct ReplaceDecoder {
  std::string from;  ///< not empty
  std::string to;
};
/// Takes `content` (one character) away, up to `start` times at the beginning of every token and
/// `stop` times at its end.
struct StripDecoder {
  std::string content;
  std::size_t start = 0;
  std::size_t stop = 0;
};
/// `replacement` becomes a space; in the first token, if one was prepended, nothing.
struct MetaspaceDecoder {
  std::string replacement;
  bool prepended = true;
};
using DecoderStep = std::variant<ByteLevelDecoder, ByteFallbackDecoder, FuseDecoder, ReplaceDecoder,
                                 StripDecoder, MetaspaceDecoder>;

/// `text` with every maximal part that isn't UTF-8 as U+FFFD (The Unicode Standard, 3.9, "U+FFFD
/// Substitution of Maximal Subparts").
std::string valid_utf8(std::string_view text);

/// Runs the steps over the tokens' texts and joins them; without steps they are joined by spaces.
/// The result is UTF-8.
std::string decode_tokens(const std::vector<DecoderStep>& steps, std::vector<std::string> tokens);

}  // namespace sherd::tokenizer
