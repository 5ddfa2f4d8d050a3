/// The model of a tokenizer: words become ids.
///
///   byte-level      a symbol is a byte (GPT-2, Llama 3, Qwen, ...)
///   byte fallback   a symbol is a character; one that the vocabulary lacks is its bytes' tokens
///                   <0x00> to <0xFF> if all are there, else the unknown token (Llama 2, Gemma)
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/data/tokenizer/merges.h"

namespace sherd::tokenizer {

struct BpeOptions {
  bool byte_level = false;  ///< words are given as bytes, and the vocabulary spells bytes
  bool byte_fallback = false;
  bool fuse_unknown = false;   ///< neighbouring unknown characters are one unknown token
  bool ignore_merges = false;  ///< a word that is a token is that token, whatever the merges say
  std::optional<std::int32_t> unknown_id{};
};

/// Immutable; any thread may encode through an encoder of its own.
class Bpe {
 public:
  using Vocabulary = std::unordered_map<std::string, std::int32_t>;

  /// `vocabulary` as the file spells it; merges name ids in it.
  Bpe(const Vocabulary& vocabulary, std::vector<MergeTable::Merge> merges,
      const BpeOptions& options);

 private:
  friend class BpeEncoder;
  void number_symbols(const Vocabulary& vocabulary);
  void find_cuts(const Vocabulary& vocabulary);
  std::int32_t character_id(char32_t point) const;

  BpeOptions options_;
  MergeTable merges_;
  Vocabulary words_;  ///< for ignore_merges
  /// Byte-level: what a byte becomes before merging; usually one id.
  std::array<std::vector<std::int32_t>, 256> byte_symbols_;
  std::array<bool, 256> byte_is_unknown_{};
  std::array<std::int32_t, 256> fallback_{};  ///< ids of <0xXX>, or -1
  std::vector<std::array<std::int32_t, 256>> pages_;
  std::vector<std::uint16_t> page_of_;  ///< of 256 code points; 0 is the page of unknown ones
  /// Whether some merge may join X and a Y that follows it. Where none does, and the vocabulary has
  /// both, a word can be cut between them without changing its ids: a document that is one word
  /// becomes words that come again, and those are cached.
  bool may_join(char32_t x, char32_t y) const {
    const std::uint32_t bit = bit_of(x, y);
    return (joins_[bit / 64] >> (bit % 64) & 1) != 0;
  }
  static std::uint32_t bit_of(char32_t x, char32_t y) {
    return ((x * 0x9e3779b1u) ^ (y * 0x85ebca6bu)) * 0xc2b2ae35u >> (32 - kJoinBits);
  }
  static constexpr int kJoinBits = 20;
  bool may_cut_ = false;
  std::vector<std::uint64_t> joins_;  ///< a bit for pairs of one hash
};

/// Scratch and cache of one thread. Results don't depend on what it encoded before.
///
/// The cache is larger than the processor's own, so a few words wait until what is known of them has
/// come from memory.
class BpeEncoder {
 public:
  explicit BpeEncoder(const Bpe& bpe);

  /// Appends the ids of one word, UTF-8 and not empty, to `ids`: now or with a later word.
  void encode(std::string_view word, std::vector<std::int32_t>& ids);
  /// Appends the ids of the words that wait.
  void finish(std::vector<std::int32_t>& ids);
  /// Forgets the words that wait.
  void drop() { num_waiting_ = 0; }

 private:
  static constexpr std::size_t kKeyBytes = 24;
  static constexpr std::size_t kCachedIds = 9;
  static constexpr std::size_t kWaiting = 16;
  using Key = std::array<std::uint64_t, 3>;
  /// One cache line.
  struct alignas(64) Entry {
    Key key{};
    std::uint8_t length = 0;  ///< of the word; 0: the entry is empty
    std::uint8_t count = 0;
    std::array<std::int32_t, kCachedIds> ids{};
  };
  struct Waiting {
    Key key;  ///< the word's bytes, and zeros
    std::uint32_t entry;
    std::uint8_t length;
  };

  static Key key_of(std::string_view word);
  void encode_cached(std::string_view word, std::vector<std::int32_t>& ids);
  void encode_uncached(std::string_view word);
  void symbols_of_bytes(std::string_view word);
  void symbols_of_characters(std::string_view word);

  const Bpe& bpe_;
  Merger merger_;
  std::vector<std::int32_t> symbols_;
  std::vector<Entry> cache_;
  std::array<Waiting, kWaiting> waiting_{};
  std::size_t num_waiting_ = 0;
  std::string word_;
};

}  // namespace sherd::tokenizer
