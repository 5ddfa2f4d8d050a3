#include "engine/data/tokenizer/decoder.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "engine/data/tokenizer/byte_alphabet.h"
#include "engine/data/tokenizer/normalizer.h"
#include "engine/data/utf8.h"

namespace sherd::tokenizer {
namespace {

using Tokens = std::vector<std::string>;

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

/// How many bytes at `offset` begin a code point whose rest is wrong or missing; at least 1.
std::size_t maximal_part(std::span<const std::uint8_t> bytes, std::size_t offset) {
  const std::uint8_t lead = bytes[offset];
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4) return 1;
  std::size_t taken = 1;
  for (; taken < length && offset + taken < bytes.size(); ++taken) {
    const std::uint8_t next = bytes[offset + taken];
    std::uint8_t low = 0x80;
    std::uint8_t high = 0xbf;
    if (taken == 1) {
      if (lead == 0xe0) low = 0xa0;
      if (lead == 0xed) high = 0x9f;
      if (lead == 0xf0) low = 0x90;
      if (lead == 0xf4) high = 0x8f;
    }
    if (next < low || next > high) break;
  }
  return taken;
}

bool is_utf8(std::string_view text) {
  const auto bytes = data::as_bytes(text);
  for (std::size_t offset = 0; offset < bytes.size();) {
    const int length = data::decode_utf8(bytes, offset).length;
    if (length == 0) return false;
    offset += static_cast<std::size_t>(length);
  }
  return true;
}

[[noreturn]] void grows_too_much() {
  throw DataError("the tokenizer's decoder makes tokens more than {} times as long.", kMostGrowth);
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to,
                     std::size_t most) {
  std::string result;
  std::size_t done = 0;
  for (std::size_t found = text.find(from); found != std::string_view::npos;
       found = text.find(from, done)) {
    result.append(text.substr(done, found - done)).append(to);
    if (result.size() > most) grows_too_much();
    done = found + from.size();
  }
  return result.append(text.substr(done));
}

Tokens run(const ByteLevelDecoder&, const Tokens& tokens, std::size_t) {
  std::string bytes;
  for (const std::string& token : tokens) {
    bytes += bytes_of_alphabet(token).value_or(token);
  }
  return {valid_utf8(bytes)};
}

Tokens run(const ByteFallbackDecoder&, Tokens tokens, std::size_t) {
  Tokens result;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (is_utf8(bytes)) {
      result.push_back(bytes);
    } else {
      for (std::size_t i = 0; i < bytes.size(); ++i) result.emplace_back(kReplacement);
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    const int byte = byte_of_token(token);
    if (byte >= 0) {
      bytes.push_back(static_cast<char>(byte));
    } else {
      flush();
      result.push_back(std::move(token));
    }
  }
  flush();
  return result;
}

Tokens run(const FuseDecoder&, const Tokens& tokens, std::size_t) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  return {all};
}

Tokens run(const ReplaceDecoder& step, Tokens tokens, std::size_t most) {
  for (std::string& token : tokens) {
    token = replaced(token, step.from, step.to, most);
    most -= std::min(most, token.size());
  }
  return tokens;
}

Tokens run(const StripDecoder& step, Tokens tokens, std::size_t) {
  for (std::string& token : tokens) {
    std::string_view rest = token;
    for (std::size_t i = 0; i < step.start && rest.starts_with(step.content); ++i) {
      rest.remove_prefix(step.content.size());
    }
    for (std::size_t i = 0; i < step.stop && rest.ends_with(step.content); ++i) {
      rest.remove_suffix(step.content.size());
    }
    token = std::string(rest);
  }
  return tokens;
}

Tokens run(const MetaspaceDecoder& step, Tokens tokens, std::size_t most) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = replaced(tokens[i], step.replacement, i == 0 && step.prepended ? "" : " ", most);
  }
  return tokens;
}

}  // namespace

std::string valid_utf8(std::string_view text) {
  std::string result;
  const auto bytes = data::as_bytes(text);
  for (std::size_t offset = 0; offset < bytes.size();) {
    const auto length = static_cast<std::size_t>(data::decode_utf8(bytes, offset).length);
    if (length > 0) {
      result.append(text.substr(offset, length));
      offset += length;
    } else {
      result += kReplacement;
      offset += maximal_part(bytes, offset);
    }
  }
  return result;
}

std::string decode_tokens(const std::vector<DecoderStep>& steps, std::vector<std::string> tokens) {
  std::size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  const std::size_t most = kMostGrowth * bytes + kMostAdded;
  for (const DecoderStep& step : steps) {
    tokens = std::visit([&](const auto& kind) { return run(kind, std::move(tokens), most); }, step);
  }
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && steps.empty()) text += ' ';
    text += tokens[i];
  }
  return text;
}

}  // namespace sherd::tokenizer
