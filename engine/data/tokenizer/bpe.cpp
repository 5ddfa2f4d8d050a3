#include "engine/data/tokenizer/bpe.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "engine/data/tokenizer/byte_alphabet.h"
#include "engine/data/utf8.h"

namespace sherd::tokenizer {
namespace {

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

/// What SentencePiece writes for a space.
constexpr char32_t kSpaceMark = 0x2581;

/// A character of a text that is UTF-8, and its kind among the usual ones (kUsualKinds: none of
/// them).
struct Character {
  char32_t value;
  std::uint32_t kind;
  std::size_t length;
};

Character character_at(const char* text, std::size_t kinds) {
  const auto byte = [&](int i) {
    return static_cast<char32_t>(static_cast<std::uint8_t>(text[i]));
  };
  const auto rest = [&](int i) { return byte(i) & 0x3f; };
  const char32_t first = byte(0);
  const auto none = static_cast<std::uint32_t>(kinds);
  if (first < 0x80) return {first, first, 1};
  if (first < 0xe0) return {(first & 0x1f) << 6 | rest(1), none, 2};
  if (first < 0xf0) {
    const char32_t value = (first & 0x0f) << 12 | rest(1) << 6 | rest(2);
    return {value, value == kSpaceMark ? none - 1 : none, 3};
  }
  return {(first & 0x07) << 18 | rest(1) << 12 | rest(2) << 6 | rest(3), none, 4};
}

/// Eight bytes at most, without a call of memcpy.
std::uint64_t few_bytes(const char* text, std::size_t count) {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  if (count >= 4) {
    std::memcpy(&low, text, 4);
    std::memcpy(&high, text + count - 4, 4);
    return std::uint64_t{high} << (8 * (count - 4)) | low;
  }
  if (count == 0) return 0;
  const auto at = [&](std::size_t i) { return std::uint64_t{static_cast<std::uint8_t>(text[i])}; };
  return at(0) | at(count / 2) << (8 * (count / 2)) | at(count - 1) << (8 * (count - 1));
}

}  // namespace

Bpe::Bpe(const Vocabulary& vocabulary, std::vector<MergeTable::Merge> merges,
         const BpeOptions& options)
    : options_(options), merges_(std::move(merges), usual_symbols(vocabulary, options)) {
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

// Bytes, or ASCII and the mark for a space.
std::vector<std::int32_t> Bpe::usual_symbols(const Vocabulary& vocabulary,
                                             const BpeOptions& options) {
  std::vector<char32_t> points;
  for (int byte = 0; byte < (options.byte_level ? 255 : 128); ++byte) {
    const auto one = static_cast<std::uint8_t>(byte);
    points.push_back(options.byte_level ? character_of_byte(one) : one);
  }
  if (!options.byte_level) points.push_back(kSpaceMark);
  std::vector<std::int32_t> symbols;
  for (const char32_t point : points) {
    std::string spelled;
    data::append_utf8(spelled, point);
    const auto found = vocabulary.find(spelled);
    if (found != vocabulary.end()) symbols.push_back(found->second);
  }
  return symbols;
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

bool Bpe::cuts(char32_t x, char32_t y) const {
  return !may_join(x, y) && character_id(x) >= 0 && character_id(y) >= 0;
}

void Bpe::find_cuts(const Vocabulary& vocabulary) {
  std::unordered_map<std::int32_t, std::string_view> text_of;
  for (const auto& [text, id] : vocabulary) text_of[id] = text;
  joins_.resize((std::size_t{1} << kJoinBits) / 64);
  for (const auto& merge : merges_.merges()) {
    for (const std::int32_t id : {merge.left, merge.right}) {
      // Their symbols don't represent the characters that spell them.
      if (id == options_.unknown_id || byte_of_token(text_of[id]) >= 0) return;
    }
    const std::string_view right = text_of[merge.right];
    const std::uint32_t bit = bit_of(last_character(text_of[merge.left]),
                                     data::decode_utf8(data::as_bytes(right), 0).value);
    joins_[bit / 64] |= std::uint64_t{1} << (bit % 64);
  }
  may_cut_ = true;
  usual_cuts_.resize(kUsualKinds * kUsualKinds);
  const auto character = [](std::size_t kind) {
    return kind + 1 == kUsualKinds ? kSpaceMark : static_cast<char32_t>(kind);
  };
  for (std::size_t x = 0; x < kUsualKinds; ++x) {
    for (std::size_t y = 0; y < kUsualKinds; ++y) {
      usual_cuts_[x * kUsualKinds + y] = cuts(character(x), character(y)) ? 1 : 0;
    }
  }
}

BpeEncoder::BpeEncoder(const Bpe& bpe, std::vector<CachedWord> cache)
    : bpe_(bpe), merger_(bpe.merges_), cache_(std::move(cache)) {
  SHERD_CHECK(cache_.size() == kCacheEntries, "a cache of {} words", cache_.size());
}

std::vector<CachedWord> BpeEncoder::tokens_as_words(const Bpe& bpe,
                                                    const Bpe::Vocabulary& vocabulary) {
  BpeEncoder encoder(bpe, std::vector<CachedWord>(kCacheEntries));
  std::vector<std::pair<std::int32_t, std::string_view>> tokens;
  for (const auto& [text, id] : vocabulary) tokens.emplace_back(id, text);
  // Of those with one place the last stays, and what was merged early is used most.
  std::sort(tokens.rbegin(), tokens.rend());
  for (const auto& [id, text] : tokens) {
    const auto bytes = bpe.options_.byte_level ? bytes_of_alphabet(text) : std::string(text);
    if (!bytes || bytes->empty() || bytes->size() > CachedWord::kBytes) continue;
    encoder.encode_uncached(*bytes);
    if (encoder.symbols_.size() == 1) encoder.keep(place_of(*bytes));
  }
  return std::move(encoder.cache_);
}

void BpeEncoder::encode(std::string_view word, std::vector<std::int32_t>& ids) {
  bpe_.may_cut_ ? encode_in_parts(word, ids) : encode_cached(word, ids);
}

void BpeEncoder::encode_in_parts(std::string_view word, std::vector<std::int32_t>& ids) {
  constexpr std::size_t kKinds = Bpe::kUsualKinds;
  std::size_t begin = 0;
  Character before = character_at(word.data(), kKinds);
  for (std::size_t at = before.length; at < word.size();) {
    const Character next = character_at(word.data() + at, kKinds);
    const bool usual = before.kind < kKinds && next.kind < kKinds;
    if (usual ? bpe_.usual_cuts_[before.kind * kKinds + next.kind] != 0
              : bpe_.cuts(before.value, next.value)) {
      encode_cached(word.substr(begin, at - begin), ids);
      begin = at;
    }
    before = next;
    at += next.length;
  }
  encode_cached(word.substr(begin), ids);
}

BpeEncoder::Waiting BpeEncoder::place_of(std::string_view word) {
  CachedWord::Key key{};
  std::size_t done = 0;
  for (std::uint64_t& part : key) {
    const std::size_t left = word.size() - done;
    if (left < sizeof(part)) {
      part = few_bytes(word.data() + done, left);
      break;
    }
    std::memcpy(&part, word.data() + done, sizeof(part));
    done += sizeof(part);
  }
  std::uint64_t hash = (key[0] ^ word.size()) * 0x9e3779b97f4a7c15u;
  hash = ((hash ^ (hash >> 32)) + key[1]) * 0xbf58476d1ce4e5b9u;
  hash = ((hash ^ (hash >> 29)) + key[2]) * 0x94d049bb133111ebu;
  return {key, static_cast<std::uint32_t>((hash >> 40) % kCacheEntries),
          static_cast<std::uint8_t>(word.size())};
}

// `symbols_`, as the ids of this word.
void BpeEncoder::keep(const Waiting& word) {
  if (symbols_.size() > CachedWord::kIds) return;
  CachedWord& entry = cache_[word.entry];
  entry.key = word.key;
  entry.length = word.length;
  entry.count = static_cast<std::uint8_t>(symbols_.size());
  std::copy(symbols_.begin(), symbols_.end(), entry.ids.begin());
}

void BpeEncoder::encode_cached(std::string_view word, std::vector<std::int32_t>& ids) {
  if (word.size() > CachedWord::kBytes) {
    finish(ids);
    encode_uncached(word);
    ids.insert(ids.end(), symbols_.begin(), symbols_.end());
    return;
  }
  Waiting& waiting = waiting_[num_waiting_++];
  waiting = place_of(word);
  __builtin_prefetch(&cache_[waiting.entry]);
  if (num_waiting_ == kWaiting) finish(ids);
}

void BpeEncoder::finish(std::vector<std::int32_t>& ids) {
  // The ids of cached words, one word after the other. Each copy has a fixed length, including what
  // follows the word's ids: such a copy takes only a few instructions.
  std::array<std::int32_t, kWaiting * CachedWord::kIds> known;
  std::int32_t* end = known.data();
  const auto flush = [&] {
    ids.insert(ids.end(), known.data(), end);
    end = known.data();
  };
  for (std::size_t i = 0; i < num_waiting_; ++i) {
    const Waiting& word = waiting_[i];
    const CachedWord& entry = cache_[word.entry];
    if (entry.is(word.key, word.length)) {
      std::memcpy(end, entry.ids.data(), sizeof(entry.ids));
      end += entry.count;
      continue;
    }
    flush();
    encode_uncached({reinterpret_cast<const char*>(word.key.data()), word.length});
    ids.insert(ids.end(), symbols_.begin(), symbols_.end());
    keep(word);
  }
  flush();
  num_waiting_ = 0;
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
