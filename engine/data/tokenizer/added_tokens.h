/// Tokens that are cut out of the text before any other processing, such as "<|endoftext|>".
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::tokenizer {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool special = false;      ///< left out when ids become text for users
  bool normalized = false;   ///< searched in normalised text, in its own normalised form
  bool single_word = false;  ///< only where no word character is adjacent
  bool lstrip = false;       ///< includes the white space before it
  bool rstrip = false;       ///< includes the white space after it
};

/// The meaning of text that spells a special token.
enum class SpecialTokens : std::uint8_t {
  kAsText,    ///< ordinary text; for documents, whose authors may write anything
  kAsTokens,  ///< the token; for templates, and the default of Hugging Face's tokenizers
};

/// Finds added tokens: the leftmost, and among these the longest. Immutable.
class AddedTokenFinder {
 public:
  /// `spellings[i]` is the text searched for `tokens[i]`; it isn't empty.
  AddedTokenFinder(std::vector<AddedToken> tokens, const std::vector<std::string>& spellings);

  bool empty() const { return tokens_.empty(); }

  /// Calls `on_text` and `on_token` for the parts of `text` in order; parts aren't empty.
  /// `at_start`: the part is the first of the text. `trusted`, if not empty, has a byte for each
  /// byte of the text. Text then counts as a special token only if all its bytes are set in
  /// `trusted`.
  /// Errors   DataError: the search takes too many steps (tokens with common prefixes, or the white
  ///          space that they include)
  void split(std::string_view text, SpecialTokens policy,
             const std::function<void(std::string_view part, bool at_start)>& on_text,
             const std::function<void(const AddedToken&)>& on_token,
             std::string_view trusted = {}) const;

 private:
  struct Node {
    std::vector<std::pair<std::uint8_t, std::uint32_t>> children;
    std::int32_t token = -1;
  };
  /// The longest token that begins at `begin`, or -1; `end` is where it ends.
  std::int32_t match(std::string_view text, std::size_t begin, std::size_t& end,
                     std::size_t& looked_at) const;
  std::size_t next_begin(std::string_view text, std::size_t begin) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::array<bool, 256> may_begin_{};
  std::optional<std::uint8_t> only_begin_;  ///< the first byte if all tokens share it, mostly "<"
};

}  // namespace sherd::tokenizer
