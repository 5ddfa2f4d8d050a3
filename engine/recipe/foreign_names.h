/// Names that other engines use: nanoGPT, Hugging Face's Trainer, DeepSpeed, Megatron-LM and
/// torchtitan. They are tables, so a new name is one line (foreign_names.cpp).
#pragma once

#include <algorithm>
#include <span>
#include <string_view>

namespace sherd::engine {

/// Keys of other engines. `words` are their names, separated by spaces; "block.name" if the name
/// alone would be ambiguous.
struct ForeignKey {
  std::string_view words;
  std::string_view key;    ///< our key for them; "" if there is none
  std::string_view why{};  ///< a sentence about what differs or isn't supported
};
std::span<const ForeignKey> foreign_keys();

/// Blocks of other engines, with either our block or a sentence.
struct ForeignBlock {
  std::string_view words;
  std::string_view block;
  std::string_view why{};
};
std::span<const ForeignBlock> foreign_blocks();

/// Their names for our choices. A name only applies to keys that have this choice.
struct ForeignChoice {
  std::string_view words;
  std::string_view choice;
};
std::span<const ForeignChoice> foreign_choices();

/// Calls `use(word)` for each of `words`.
template <class Use>
void for_each_word(std::string_view words, const Use& use) {
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(' '));
    use(word);
    words.remove_prefix(std::min(words.size(), word.size() + 1));
  }
}

}  // namespace sherd::engine
