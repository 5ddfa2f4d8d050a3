#include "engine/data/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "engine/data/tokenizer/pattern/unicode_classes.h"
#include "engine/data/utf8.h"

namespace sherd::tokenizer {
namespace {

/// Bytes, again and again: of a token's beginning at each place, of the white space that a token
/// takes.
std::size_t most_looked_at(std::string_view text) {
  return (std::size_t{1} << 28) + 64 * text.size();
}

std::size_t start_of_last(std::string_view text) {
  std::size_t start = text.size() - 1;
  while (start > 0 && (static_cast<std::uint8_t>(text[start]) & 0xc0) == 0x80) --start;
  return start;
}

char32_t character_at(std::string_view text, std::size_t offset) {
  return data::decode_utf8(data::as_bytes(text), offset).value;
}

bool touches_word(std::string_view before, std::string_view after) {
  return (!before.empty() &&
          word_characters().contains(character_at(before, start_of_last(before)))) ||
         (!after.empty() && word_characters().contains(character_at(after, 0)));
}

std::size_t trailing_space(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    const std::size_t start = start_of_last(text.substr(0, end));
    if (!white_space().contains(character_at(text, start))) break;
    end = start;
  }
  return text.size() - end;
}

std::size_t leading_space(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size()) {
    const data::CodePoint point = data::decode_utf8(data::as_bytes(text), end);
    if (!white_space().contains(point.value)) break;
    end += static_cast<std::size_t>(point.length);
  }
  return end;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens,
                                   const std::vector<std::string>& spellings)
    : tokens_(std::move(tokens)), nodes_(1) {
  for (std::size_t token = 0; token < tokens_.size(); ++token) {
    std::uint32_t node = 0;
    for (const std::uint8_t byte : data::as_bytes(spellings[token])) {
      auto& children = nodes_[node].children;
      const auto place = std::lower_bound(children.begin(), children.end(),
                                          std::pair<std::uint8_t, std::uint32_t>(byte, 0));
      if (place != children.end() && place->first == byte) {
        node = place->second;
        continue;
      }
      const auto child = static_cast<std::uint32_t>(nodes_.size());
      children.insert(place, {byte, child});
      nodes_.emplace_back();
      node = child;
    }
    // Of two tokens that normalise to the same text, the first listed counts.
    if (nodes_[node].token < 0) nodes_[node].token = static_cast<std::int32_t>(token);
  }
  for (const auto& [byte, child] : nodes_[0].children) may_begin_[byte] = true;
  if (nodes_[0].children.size() == 1) only_begin_ = nodes_[0].children[0].first;
}

// The first place from `begin` on where a token may begin; the text's end if there is none.
std::size_t AddedTokenFinder::next_begin(std::string_view text, std::size_t begin) const {
  if (nodes_[0].children.empty()) return text.size();
  if (only_begin_) {
    return std::min(text.find(static_cast<char>(*only_begin_), begin), text.size());
  }
  while (begin < text.size() && !may_begin_[static_cast<std::uint8_t>(text[begin])]) ++begin;
  return begin;
}

std::int32_t AddedTokenFinder::match(std::string_view text, std::size_t begin, std::size_t& end,
                                     std::size_t& looked_at) const {
  std::int32_t token = -1;
  std::uint32_t node = 0;
  for (std::size_t i = begin; i < text.size(); ++i) {
    const auto byte = static_cast<std::uint8_t>(text[i]);
    const auto& children = nodes_[node].children;
    const auto place = std::lower_bound(children.begin(), children.end(),
                                        std::pair<std::uint8_t, std::uint32_t>(byte, 0));
    ++looked_at;
    if (place == children.end() || place->first != byte) break;
    node = place->second;
    if (nodes_[node].token < 0) continue;
    token = nodes_[node].token;
    end = i + 1;
  }
  return token;
}

void AddedTokenFinder::split(
    std::string_view text, SpecialTokens policy,
    const std::function<void(std::string_view part, bool at_start)>& on_text,
    const std::function<void(const AddedToken&)>& on_token, std::string_view trusted) const {
  std::size_t done = 0;
  std::size_t looked_at = 0;
  for (std::size_t i = 0; (i = next_begin(text, i)) < text.size();) {
    if (looked_at > most_looked_at(text)) {
      throw DataError(
          "the tokenizer's added tokens take more than {} steps to be found in a text of {} bytes.",
          most_looked_at(text), text.size());
    }
    std::size_t end = 0;
    const std::int32_t index = match(text, i, end, looked_at);
    if (index < 0) {
      ++i;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(index)];
    if (token.special && !trusted.empty() &&
        trusted.substr(i, end - i).find('\0') != std::string_view::npos) {
      ++i;  // a trusted one may begin inside of it
      continue;
    }
    std::size_t begin = std::exchange(i, end);  // even one that is passed over uses its bytes up
    if (token.special && policy == SpecialTokens::kAsText) continue;
    if (token.single_word && touches_word(text.substr(0, begin), text.substr(end))) continue;
    if (token.lstrip) {
      const std::size_t space = trailing_space(text.substr(0, begin));
      looked_at += space;
      begin = std::max(begin - space, done);
    }
    if (token.rstrip) {
      const std::size_t space = leading_space(text.substr(end));
      looked_at += space;
      end += space;
    }
    if (done < begin) on_text(text.substr(done, begin - done), done == 0);
    on_token(token);
    done = end;
  }
  if (done < text.size()) on_text(text.substr(done), done == 0);
}

}  // namespace sherd::tokenizer
