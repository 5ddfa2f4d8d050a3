/// The model of a tokenizer: converts words to ids.
///
///   byte-level      a symbol is a byte (GPT-2, Llama 3, Qwen, ...)
///   byte fallback   a symbol is a character; one missing from the vocabulary becomes the tokens of
///                   its bytes, <0x00> to <0xFF>, if all exist, else the unknown token (Llama 2,
///                   Gemma)
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
  bool byte_level = false;  ///< words are bytes, and the vocabulary spells bytes
  bool byte_fallback = false;
  bool fuse_unknown = false;   ///< adjacent unknown characters become one unknown token
  bool ignore_merges = false;  ///< a word that is a token becomes that token without merging
  std::optional<std::int32_t> unknown_id{};
};

/// Immutable; any thread may encode through its own encoder.
class Bpe {
 public:
  using Vocabulary = std::unordered_map<std::string, std::int32_t>;

  /// `vocabulary` as the file spells it; merges refer to its ids.
  Bpe(const Vocabulary& vocabulary, std::vector<MergeTable::Merge> merges,
      const BpeOptions& options);

 private:
  friend class BpeEncoder;
  static std::vector<std::int32_t> usual_symbols(const Vocabulary& vocabulary,
                                                 const BpeOptions& options);
  void number_symbols(const Vocabulary& vocabulary);
  void find_cuts(const Vocabulary& vocabulary);
  std::int32_t character_id(char32_t point) const {
    return pages_[page_of_[point / 256]][point % 256];
  }

  BpeOptions options_;
  MergeTable merges_;
  Vocabulary words_;  ///< for ignore_merges
  /// Byte-level: what a byte becomes before merging; usually one id.
  std::array<std::vector<std::int32_t>, 256> byte_symbols_;
  std::array<bool, 256> byte_is_unknown_{};
  std::array<std::int32_t, 256> fallback_{};  ///< ids of <0xXX>, or -1
  std::vector<std::array<std::int32_t, 256>> pages_;
  std::vector<std::uint16_t> page_of_;  ///< for 256 code points each; page 0: unknown ones
  /// Whether any merge may join X and a following Y. If none does, and the vocabulary has both, a
  /// word can be split between them without changing its ids. So a document that is a single word
  /// becomes repeated words, which are cached.
  bool may_join(char32_t x, char32_t y) const {
    const std::uint32_t bit = bit_of(x, y);
    return (joins_[bit / 64] >> (bit % 64) & 1) != 0;
  }
  static std::uint32_t bit_of(char32_t x, char32_t y) {
    return ((x * 0x9e3779b1u) ^ (y * 0x85ebca6bu)) * 0xc2b2ae35u >> (32 - kJoinBits);
  }
  static constexpr int kJoinBits = 20;
  bool may_cut_ = false;
  std::vector<std::uint64_t> joins_;  ///< a bit for all pairs with the same hash
  /// Whether a word is split between X and Y. Never next to unknown characters: they may become one
  /// token or vanish.
  bool cuts(char32_t x, char32_t y) const;
  /// The same for the most frequent characters: ASCII and the mark for a space. The table fits into
  /// the processor's L1 cache.
  static constexpr std::size_t kUsualKinds = 129;
  std::vector<std::uint8_t> usual_cuts_;
};

/// The ids of a word. One cache line.
struct alignas(64) CachedWord {
  static constexpr std::size_t kBytes = 24;
  static constexpr std::size_t kIds = 9;
  using Key = std::array<std::uint64_t, 3>;

  Key key{};                ///< its bytes, padded with zeros
  std::uint8_t length = 0;  ///< in bytes; 0: an empty entry
  std::uint8_t count = 0;
  std::array<std::int32_t, kIds> ids{};

  bool is(const Key& other, std::uint8_t other_length) const {
    const std::uint64_t differences =
        (key[0] ^ other[0]) | (key[1] ^ other[1]) | (key[2] ^ other[2]);
    return differences == 0 && length == other_length;
  }
};

/// Scratch memory and cache of one thread. Results don't depend on what it encoded before.
///
/// The cache of words is larger than the processor's cache, so a few words wait until their entries
/// have arrived from memory.
class BpeEncoder {
 public:
  /// Starts with `cache`, made by tokens_as_words().
  BpeEncoder(const Bpe& bpe, std::vector<CachedWord> cache);

  /// The words that merge to one token, as cache entries. They save merging a text's first words; a
  /// vocabulary's tokens are the words that occur soonest.
  static std::vector<CachedWord> tokens_as_words(const Bpe& bpe, const Bpe::Vocabulary& vocabulary);

  /// Appends the ids of one word, UTF-8 and not empty, to `ids`, now or with a later word.
  void encode(std::string_view word, std::vector<std::int32_t>& ids);
  /// Appends the ids of the waiting words.
  void finish(std::vector<std::int32_t>& ids);
  /// Discards the waiting words.
  void drop() { num_waiting_ = 0; }

 private:
  static constexpr std::size_t kWaiting = 16;
  struct Waiting {
    CachedWord::Key key;
    std::uint32_t entry;
    std::uint8_t length;
  };

  static Waiting place_of(std::string_view word);
  void keep(const Waiting& word);
  void encode_in_parts(std::string_view word, std::vector<std::int32_t>& ids);
  void encode_cached(std::string_view word, std::vector<std::int32_t>& ids);
  void encode_uncached(std::string_view word);
  void symbols_of_bytes(std::string_view word);
  void symbols_of_characters(std::string_view word);

  const Bpe& bpe_;
  Merger merger_;
  std::vector<std::int32_t> symbols_;
  std::vector<CachedWord> cache_;
  std::array<Waiting, kWaiting> waiting_{};
  std::size_t num_waiting_ = 0;
  std::string word_;
};

}  // namespace sherd::tokenizer
