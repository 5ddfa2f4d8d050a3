/// Converts tokens back to text.
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
/// Removes `content` (one character), up to `start` times at the beginning of every token and
/// `stop` times at its end.
struct StripDecoder {
  std::string content;
  std::size_t start = 0;
  std::size_t stop = 0;
};
/// `replacement` becomes a space. If one was prepended, it becomes nothing in the first token.
struct MetaspaceDecoder {
  std::string replacement;
  bool prepended = true;
};
using DecoderStep = std::variant<ByteLevelDecoder, ByteFallbackDecoder, FuseDecoder, ReplaceDecoder,
                                 StripDecoder, MetaspaceDecoder>;

/// `text` with every maximal part that isn't UTF-8 replaced by U+FFFD (The Unicode Standard, 3.9,
/// "U+FFFD Substitution of Maximal Subparts").
std::string valid_utf8(std::string_view text);

/// Runs the steps on the tokens' texts and joins them; without steps, spaces join them. The result
/// is UTF-8.
std::string decode_tokens(const std::vector<DecoderStep>& steps, std::vector<std::string> tokens);

}  // namespace sherd::tokenizer
