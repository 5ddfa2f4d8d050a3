#include "engine/data/tokenizer/bpe.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/data/tokenizer/byte_alphabet.h"
#include "engine/data/utf8.h"

namespace sherd::tokenizer {
namespace {

constexpr char32_t kMetaSpace = 0x2581;
constexpr std::string_view kMetaSpaceText = "\xe2\x96\x81";
constexpr std::size_t kCacheEntries = std::size_t{1} << 16;

char32_t last_character(std::string_view text) {
  std::size_t offset = text.size() - 1;
  while (offset > 0 && (static_cast<std::uint8_t>(text[offset]) & 0xc0) == 0x80) --offset;
  return data::decode_utf8(data::as_bytes(text), offset).value;
}

bool is_one_character(std::string_view text) {
  return !text.empty() &&
         data::decode_utf8(data::as_bytes(text), 0).length == static_cast<int>(text.size());
}

}  // namespace

Bpe::Bpe(const Vocabulary& vocabulary, std::vector<MergeTable::Merge> merges,
         const BpeOptions& options)
    : options_(options), merges_(std::move(merges)) {
  number_symbols(vocabulary);
  if (options.ignore_merges) {
    for (const auto& [text, id] : vocabulary) {
      if (!options.byte_level) {
        words_[text] = id;
      } else if (const auto bytes = bytes_of_alphabet(text)) {
        words_[*bytes] = id;
      }
    }
  }
  if (!options.byte_level && !options.ignore_merges) find_cuts(vocabulary);
}

void Bpe::number_symbols(const Vocabulary& vocabulary) {
  fallback_.fill(-1);
  pages_.emplace_back().fill(-1);
  page_of_.resize(data::kNumCodePoints / 256);
  for (const auto& [text, id] : vocabulary) {
    const int byte = byte_of_token(text);
    if (byte >= 0) fallback_[static_cast<std::size_t>(byte)] = id;
    if (!is_one_character(text)) continue;
    const char32_t point = data::decode_utf8(data::as_bytes(text), 0).value;
    std::uint16_t& page = page_of_[point / 256];
    if (page == 0) {
      page = static_cast<std::uint16_t>(pages_.size());
      pages_.emplace_back().fill(-1);
    }
    pages_[page][point % 256] = id;
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const char32_t point = character_of_byte(static_cast<std::uint8_t>(byte));
    const std::int32_t id = character_id(point);
    std::string spelled;
    data::append_utf8(spelled, point);
    if (id >= 0) {
      byte_symbols_[byte] = {id};
      continue;
    }
    for (const std::uint8_t part : data::as_bytes(spelled)) {
      if (options_.byte_fallback) byte_symbols_[byte].push_back(fallback_[part]);
    }
    const auto& symbols = byte_symbols_[byte];
    byte_is_unknown_[byte] =
        symbols.empty() || std::find(symbols.begin(), symbols.end(), -1) != symbols.end();
  }
}

void Bpe::find_cuts(const Vocabulary& vocabulary) {
  const auto meta = vocabulary.find(std::string(kMetaSpaceText));
  if (meta == vocabulary.end()) return;
  std::unordered_map<std::int32_t, std::string_view> text_of;
  for (const auto& [text, id] : vocabulary) text_of[id] = text;
  for (const auto& merge : merges_.merges()) {
    for (const std::int32_t id : {merge.left, merge.right}) {
      // Their symbols don't stand for the characters that spell them.
      if (id == options_.unknown_id || byte_of_token(text_of[id]) >= 0) return;
    }
    if (text_of[merge.right].starts_with(kMetaSpaceText) && !text_of[merge.left].empty()) {
      joins_meta_space_[last_character(text_of[merge.left])] = true;
    }
  }
  may_cut_ = true;
}

std::int32_t Bpe::character_id(char32_t point) const {
  return pages_[page_of_[point / 256]][point % 256];
}

BpeEncoder::BpeEncoder(const Bpe& bpe) : bpe_(bpe), merger_(bpe.merges_), cache_(kCacheEntries) {}

void BpeEncoder::encode(std::string_view word, std::vector<std::int32_t>& ids) {
  if (!bpe_.may_cut_ || word.size() <= kMetaSpaceText.size()) {
    encode_cached(word, ids);
    return;
  }
  std::size_t begin = 0;
  for (std::size_t cut = word.find(kMetaSpaceText, 1); cut != std::string_view::npos;
       cut = word.find(kMetaSpaceText, cut + kMetaSpaceText.size())) {
    const char32_t before = last_character(word.substr(0, cut));
    if (bpe_.joins_meta_space_.contains(before)) continue;
    encode_cached(word.substr(begin, cut - begin), ids);
    begin = cut;
  }
  encode_cached(word.substr(begin), ids);
}

void BpeEncoder::encode_cached(std::string_view word, std::vector<std::int32_t>& ids) {
  if (word.size() > kKeyBytes) {
    encode_uncached(word);
    ids.insert(ids.end(), symbols_.begin(), symbols_.end());
    return;
  }
  std::array<std::uint64_t, 3> key{};
  std::memcpy(key.data(), word.data(), word.size());
  std::uint64_t hash = (key[0] ^ word.size()) * 0x9e3779b97f4a7c15u;
  hash = ((hash ^ (hash >> 32)) + key[1]) * 0xbf58476d1ce4e5b9u;
  hash = ((hash ^ (hash >> 29)) + key[2]) * 0x94d049bb133111ebu;
  Entry& entry = cache_[(hash >> 40) % kCacheEntries];
  if (entry.length == word.size() && entry.key == key) {
    ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.count);
    return;
  }
  encode_uncached(word);
  ids.insert(ids.end(), symbols_.begin(), symbols_.end());
  if (symbols_.size() > kCachedIds) return;
  entry.key = key;
  entry.length = static_cast<std::uint8_t>(word.size());
  entry.count = static_cast<std::uint8_t>(symbols_.size());
  std::copy(symbols_.begin(), symbols_.end(), entry.ids.begin());
}

void BpeEncoder::encode_uncached(std::string_view word) {
  symbols_.clear();
  if (bpe_.options_.ignore_merges) {
    word_.assign(word);
    if (const auto found = bpe_.words_.find(word_); found != bpe_.words_.end()) {
      symbols_.push_back(found->second);
      return;
    }
  }
  if (bpe_.options_.byte_level) {
    symbols_of_bytes(word);
  } else {
    symbols_of_characters(word);
  }
  merger_.merge(symbols_);
}

void BpeEncoder::symbols_of_bytes(std::string_view word) {
  bool unknown_waits = false;
  const auto flush = [&] {
    if (std::exchange(unknown_waits, false)) symbols_.push_back(*bpe_.options_.unknown_id);
  };
  for (const std::uint8_t byte : data::as_bytes(word)) {
    const std::vector<std::int32_t>& known = bpe_.byte_symbols_[byte];
    if (!bpe_.byte_is_unknown_[byte]) {
      if (known.size() == 1) flush();
      symbols_.insert(symbols_.end(), known.begin(), known.end());
    } else if (bpe_.options_.unknown_id) {
      if (!bpe_.options_.fuse_unknown) flush();
      unknown_waits = true;
    }
  }
  flush();
}

void BpeEncoder::symbols_of_characters(std::string_view word) {
  // An unknown token is held back until a known character comes, not until bytes come: so it is in
  // the library that we match.
  bool unknown_waits = false;
  const auto flush = [&] {
    if (std::exchange(unknown_waits, false)) symbols_.push_back(*bpe_.options_.unknown_id);
  };
  const auto bytes = data::as_bytes(word);
  for (std::size_t offset = 0; offset < bytes.size();) {
    const data::CodePoint point = data::decode_utf8(bytes, offset);
    const auto length = static_cast<std::size_t>(point.length);
    const std::int32_t id = bpe_.character_id(point.value);
    const auto character = bytes.subspan(offset, length);
    offset += length;
    if (id >= 0) {
      flush();
      symbols_.push_back(id);
    } else if (bpe_.options_.byte_fallback &&
               std::all_of(character.begin(), character.end(),
                           [&](std::uint8_t byte) { return bpe_.fallback_[byte] >= 0; })) {
      for (const std::uint8_t byte : character) symbols_.push_back(bpe_.fallback_[byte]);
    } else if (bpe_.options_.unknown_id) {
      if (!bpe_.options_.fuse_unknown) flush();
      unknown_waits = true;
    }
  }
  flush();
}

}  // namespace sherd::tokenizer
