#include "engine/generate/text_stream.h"

#include <algorithm>
#include <utility>

namespace sherd::engine {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD, for bytes that aren't UTF-8

bool ends_in_escaped_byte(std::string_view text) {
  return text.size() >= 4 && text[text.size() - 4] == '\\' && text[text.size() - 3] == 'x';
}

// The bytes at the end that begin a character and don't complete it.
std::size_t begun_character(std::string_view text) {
  for (std::size_t count = 1; count <= std::min<std::size_t>(3, text.size()); ++count) {
    const auto byte = static_cast<unsigned char>(text[text.size() - count]);
    if ((byte & 0xc0) == 0x80) continue;
    const std::size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return count < length ? count : 0;
  }
  return 0;
}

// Without what may be the bytes of a character of which more are to come: three at most. But where
// tokens are bytes, a tokenizer shows each byte of several characters as U+FFFD until the last one
// is whole.
std::size_t whole_characters(std::string_view text) {
  text.remove_suffix(begun_character(text));
  for (int i = 0; i < 3 && ends_in_escaped_byte(text); ++i) text.remove_suffix(4);
  while (text.ends_with(kReplacement)) text.remove_suffix(kReplacement.size());
  return text.size();
}

bool is_inside(std::string_view text, std::size_t position) {
  return position < text.size() && (static_cast<unsigned char>(text[position]) & 0xc0) == 0x80;
}

// As much as both have at their beginning, in whole characters.
std::size_t common_length(std::string_view a, std::string_view b) {
  const auto [end, other] = std::ranges::mismatch(a, b);
  auto length = static_cast<std::size_t>(end - a.begin());
  while (length > 0 && (is_inside(a, length) || is_inside(b, length))) --length;
  return length;
}

// The length of the longest end of `text` with which `stop` begins.
std::size_t begun(std::string_view text, std::string_view stop) {
  for (std::size_t length = std::min(stop.size(), text.size()); length > 0; --length) {
    if (text.ends_with(stop.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

std::string text_after(std::string_view prompt, std::string_view all) {
  return std::string(all.substr(common_length(prompt, all)));
}

TextStream::TextStream(TextOf text_of, std::vector<std::int32_t> prompt,
                       std::vector<std::string> stops)
    : text_of_(std::move(text_of)),
      ids_(std::move(prompt)),
      prompt_(text_of_(ids_)),
      stops_(std::move(stops)) {
  std::erase(stops_, "");
}

bool TextStream::add(std::int32_t token) {
  ids_.push_back(token);
  const std::string all = text_of_(ids_);
  text_ = text_after(prompt_, all);
  std::size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, text_.find(stop));
  if (end == std::string::npos) return true;
  text_.resize(end);
  stopped_ = true;
  return false;
}

std::string TextStream::take(bool is_end) {
  std::size_t end = text_.size();
  if (!is_end && !stopped_) {
    end = whole_characters(text_);
    std::size_t held = 0;
    for (const std::string& stop : stops_) {
      held = std::max(held, begun(std::string_view(text_).substr(0, end), stop));
    }
    end -= held;
  }
  if (end <= taken_) return "";
  // Bytes that didn't become a character may have become U+FFFD, also those that were taken.
  std::size_t begin = std::exchange(taken_, end);
  while (begin < end && is_inside(text_, begin) &&
         begun_character(std::string_view(text_).substr(0, begin)) > 0) {
    ++begin;
  }
  return text_.substr(begin, end - begin);
}

}  // namespace sherd::engine
