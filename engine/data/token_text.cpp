#include "engine/data/token_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/error.h"
#include "engine/data/utf8.h"

namespace sherd::data {
namespace {

/// Control characters (C0, delete, C1) could move the cursor or worse; bidirectional overrides
/// could reorder the line.
bool is_safe(char32_t character) {
  if (character == '\n' || character == '\t') return true;
  if (character < 0x20 || (character >= 0x7f && character < 0xa0)) return false;
  const bool reorders =
      (character >= 0x202a && character <= 0x202e) || (character >= 0x2066 && character <= 0x2069);
  const bool separates = character == 0x2028 || character == 0x2029;
  return !reorders && !separates;
}

void append_safely(std::string& text, char32_t character) {
  if (is_safe(character)) {
    append_utf8(text, character);
  } else if (character < 0x80) {
    text += fmt::format("\\x{:02x}", static_cast<std::uint32_t>(character));
  } else {
    text += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(character));
  }
}

/// Bytes of unknown origin, as readable text.
std::string safe_text(std::span<const std::uint8_t> bytes) {
  std::string text;
  for (std::size_t offset = 0; offset < bytes.size();) {
    const CodePoint point = decode_utf8(bytes, offset);
    if (point.length == 0 || (point.length == 1 && !is_safe(point.value))) {
      text += fmt::format("\\x{:02x}", bytes[offset++]);
      continue;
    }
    append_safely(text, point.value);
    offset += static_cast<std::size_t>(point.length);
  }
  return text;
}

class ByteText final : public TokenText {
 public:
  explicit ByteText(std::int64_t vocab_size) : vocab_size_(vocab_size) {}

  std::string text(std::span<const std::int32_t> ids) const override {
    std::string text;
    std::vector<std::uint8_t> bytes;
    for (const std::int32_t id : ids) {
      if (id >= 0 && id < 256) {
        bytes.push_back(static_cast<std::uint8_t>(id));
        continue;
      }
      text += safe_text(bytes) + fmt::format("<{}>", id);
      bytes.clear();
    }
    return text + safe_text(bytes);
  }

  std::string exact_text(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      if (id >= 0 && id < 256) text += static_cast<char>(id);
    }
    return text;
  }

  std::vector<std::int32_t> ids(std::string_view text) const override {
    const auto bytes = as_bytes(text);
    for (const std::uint8_t byte : bytes) {
      if (byte < vocab_size_) continue;
      throw UsageError("prompt: byte {} isn't in the vocabulary of {} tokens; leave it out.", byte,
                       vocab_size_);
    }
    return {bytes.begin(), bytes.end()};
  }

  std::optional<std::int32_t> separator() const override {
    return vocab_size_ > '\n' ? std::optional<std::int32_t>('\n') : std::nullopt;
  }

 private:
  std::int64_t vocab_size_;
};

class CharacterText final : public TokenText {
 public:
  explicit CharacterText(std::vector<char32_t> characters) : characters_(std::move(characters)) {}

  std::string text(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      if (id >= 0 && id < std::ssize(characters_)) {
        append_safely(text, characters_[static_cast<std::size_t>(id)]);
      } else {
        text += fmt::format("<{}>", id);
      }
    }
    return text;
  }

  std::string exact_text(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      if (id >= 0 && id < std::ssize(characters_)) {
        append_utf8(text, characters_[static_cast<std::size_t>(id)]);
      }
    }
    return text;
  }

  std::vector<std::int32_t> ids(std::string_view text) const override {
    const auto bytes = as_bytes(text);
    std::vector<std::int32_t> ids;
    for (std::size_t offset = 0; offset < bytes.size();) {
      const CodePoint point = decode_utf8(bytes, offset);
      if (point.length == 0) throw UsageError("prompt: not UTF-8 at byte {}.", offset);
      const auto place = std::lower_bound(characters_.begin(), characters_.end(), point.value);
      if (place == characters_.end() || *place != point.value) {
        throw UsageError(
            "prompt: character \"{}\" (U+{:04X}) isn't among the {} characters of the "
            "training text; leave it out.",
            safe_text(bytes.subspan(offset, static_cast<std::size_t>(point.length))),
            static_cast<std::uint32_t>(point.value), characters_.size());
      }
      ids.push_back(static_cast<std::int32_t>(place - characters_.begin()));
      offset += static_cast<std::size_t>(point.length);
    }
    return ids;
  }

  std::optional<std::int32_t> separator() const override {
    const auto place = std::lower_bound(characters_.begin(), characters_.end(), U'\n');
    if (place == characters_.end() || *place != U'\n') return std::nullopt;
    return static_cast<std::int32_t>(place - characters_.begin());
  }

  std::vector<char32_t> characters() const override { return characters_; }

 private:
  std::vector<char32_t> characters_;
};

class IdText final : public TokenText {
 public:
  explicit IdText(std::int64_t vocab_size) : vocab_size_(vocab_size) {}

  std::string text(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) text += fmt::format("{}<{}>", text.empty() ? "" : " ", id);
    return text;
  }

  std::int64_t num_bytes(std::int32_t) const override { return 0; }

  std::vector<std::int32_t> ids(std::string_view text) const override {
    constexpr std::string_view kSpaces = " \t\n";
    std::vector<std::int32_t> ids;
    for (std::size_t begin = text.find_first_not_of(kSpaces); begin != std::string_view::npos;) {
      const std::size_t end = std::min(text.find_first_of(kSpaces, begin), text.size());
      std::int32_t id = 0;
      const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, id);
      if (error != std::errc() || stop != text.data() + end || id < 0 || id >= vocab_size_) {
        const std::string_view word = text.substr(begin, end - begin);
        throw UsageError(
            "prompt: \"{}\" isn't a token id from 0 to {}; data.format bin knows no "
            "text, so give ids separated by spaces.",
            safe_text(as_bytes(word)), vocab_size_ - 1);
      }
      ids.push_back(id);
      begin = text.find_first_not_of(kSpaces, end);
    }
    return ids;
  }

 private:
  std::int64_t vocab_size_;
};

class TokenizerText final : public TokenText {
 public:
  TokenizerText(std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                std::optional<std::int32_t> separator)
      : tokenizer_(std::move(tokenizer)), separator_(separator) {}

  std::string text(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (std::size_t begin = 0; begin < ids.size();) {
      std::size_t end = begin;
      while (end < ids.size() && !tokenizer_->token_of(ids[end]).empty()) ++end;
      text += safe_text(as_bytes(tokenizer_->decode(ids.subspan(begin, end - begin), false)));
      if (end < ids.size()) text += fmt::format("<{}>", ids[end]);
      begin = end + 1;
    }
    return text;
  }

  std::string exact_text(std::span<const std::int32_t> ids) const override {
    return tokenizer_->decode(ids, false);
  }

  std::int64_t num_bytes(std::int32_t id) const override { return tokenizer_->num_bytes(id); }

  std::vector<std::int32_t> ids(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    try {
      tokenizer::Encoder(tokenizer_).encode(text, tokenizer::SpecialTokens::kAsTokens, ids);
    } catch (const DataError& error) {
      throw UsageError("prompt: {}.", error.what());
    }
    return ids;
  }

  std::optional<std::int32_t> separator() const override { return separator_; }

  std::vector<std::int32_t> before_document() const override {
    const std::span<const std::int32_t> ids = tokenizer_->before_document();
    return {ids.begin(), ids.end()};
  }

 private:
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  std::optional<std::int32_t> separator_;
};

}  // namespace

std::string terminal_text(std::string_view text) {
  return safe_text(as_bytes(text));
}

std::unique_ptr<const TokenText> make_byte_text(std::int64_t vocab_size) {
  return std::make_unique<ByteText>(vocab_size);
}
std::unique_ptr<const TokenText> make_character_text(std::vector<char32_t> characters) {
  return std::make_unique<CharacterText>(std::move(characters));
}
std::unique_ptr<const TokenText> make_id_text(std::int64_t vocab_size) {
  return std::make_unique<IdText>(vocab_size);
}

std::unique_ptr<const TokenText> make_tokenizer_text(
    std::shared_ptr<const tokenizer::Tokenizer> tokenizer, std::optional<std::int32_t> separator) {
  return std::make_unique<TokenizerText>(std::move(tokenizer), separator);
}

}  // namespace sherd::data
