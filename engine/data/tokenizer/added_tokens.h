/// Tokens that are cut out of the text before anything else looks at it, such as "<|endoftext|>".
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
  bool special = false;      ///< left out when ids become text for people
  bool normalized = false;   ///< looked for in normalised text, in its own normalised form
  bool single_word = false;  ///< only where no word character touches it
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< takes the white space behind it
};

/// What text that spells a special token means.
enum class SpecialTokens : std::uint8_t {
  kAsText,    ///< text like any other: right for documents, whose authors may write anything
  kAsTokens,  ///< the token: right for templates, what Hugging Face's tokenizers do by default
};

/// Finds added tokens, leftmost first and of those the longest. Immutable.
class AddedTokenFinder {
 public:
  /// `spelling[i]` is what is looked for to find `tokens[i]`, and isn't empty.
  AddedTokenFinder(std::vector<AddedToken> tokens, const std::vector<std::string>& spellings);

  bool empty() const { return tokens_.empty(); }

  /// Calls `on_text` and `on_token` for the parts of `text` in order; parts aren't empty.
  /// `at_start` says that a part is the first of the text. `trusted`, if it isn't empty, has a byte for
  /// each of the text: a special token is one only where all of its bytes are set there.
  /// Errors   DataError: tokens that begin alike, or the white space that they take, are looked at too often
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
  std::optional<std::uint8_t> only_begin_;  ///< where all begin alike, mostly with "<"
};

}  // namespace sherd::tokenizer
