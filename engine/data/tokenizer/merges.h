/// Byte-pair encoding (Sennrich, Haddow and Birch, Neural Machine Translation of Rare Words with
/// Subword Units, ACL 2016): repeatedly merges the adjacent pair of lowest rank in a word, the
/// leftmost of equal ones, until no adjacent symbols can be merged.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace sherd::tokenizer {

/// (left id, right id) -> (rank, merged id). Ranks are 0, 1, 2, ...
class MergeTable {
 public:
  struct Merge {
    std::int32_t left = 0;
    std::int32_t right = 0;
    std::int32_t merged = 0;
  };
  static constexpr std::uint32_t kNone = 0xffffffff;

  /// `merges` in the order of their ranks; if a pair is listed twice, the last one counts. `usual`:
  /// at most 255 frequent symbols; pairs of these are found without a search.
  explicit MergeTable(std::vector<Merge> merges, const std::vector<std::int32_t>& usual = {});

  struct Found {
    std::uint32_t rank = kNone;  ///< kNone: the two don't merge
    std::int32_t merged = 0;
  };

  /// The rank, or kNone.
  std::uint32_t rank(std::int32_t left, std::int32_t right) const { return find(left, right).rank; }
  Found find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = key_of(left, right);
    for (std::size_t slot = hash(key) & mask_;; slot = (slot + 1) & mask_) {
      const Slot& found = slots_[slot];
      if (found.key == key || found.rank == kNone) return {found.rank, found.merged};
    }
  }
  /// The same for symbols of a word before its first merge.
  Found find_first(std::int32_t left, std::int32_t right) const {
    const std::size_t x = usual_number(left), y = usual_number(right);
    return x > 0 && y > 0 ? usual_[x * num_usual_ + y] : find(left, right);
  }
  /// Prefetches the entry of this pair: the table is larger than the caches.
  void fetch(std::int32_t left, std::int32_t right) const {
    __builtin_prefetch(&slots_[hash(key_of(left, right)) & mask_]);
  }
  /// Prefetches for find_first.
  void fetch_first(std::int32_t left, std::int32_t right) const {
    if (usual_number(left) == 0 || usual_number(right) == 0) fetch(left, right);
  }
  const std::vector<Merge>& merges() const { return merges_; }

 private:
  struct Slot {
    std::uint64_t key = ~std::uint64_t{0};
    std::uint32_t rank = kNone;
    std::int32_t merged = 0;
  };
  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }
  static std::size_t hash(std::uint64_t key) {
    key *= 0x9e3779b97f4a7c15u;
    return key ^ (key >> 32);
  }

  std::size_t usual_number(std::int32_t symbol) const {
    const auto at = static_cast<std::size_t>(symbol);
    return at < numbers_.size() ? numbers_[at] : 0;
  }

  std::vector<Merge> merges_;
  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  std::vector<std::uint8_t> numbers_;  ///< numbers of usual symbols, from 1; 0: not usual
  std::vector<Found> usual_;           ///< for pairs of usual symbols
  std::size_t num_usual_ = 0;          ///< number of usual symbols, plus one
};

/// Merges the symbols of one word. Belongs to one thread.
///
/// Cost     short words: one scan for the lowest rank per merge. Words above 64 symbols: every
///          symbol and every new pair enters and leaves a queue of its rank once. A queue is a list
///          while pairs arrive from left to right (as they mostly do), else a heap. So time is
///          linear for a repeated character, and n log n at worst.
class Merger {
 public:
  explicit Merger(const MergeTable& table);
  ~Merger();
  void merge(std::vector<std::int32_t>& symbols);

 private:
  static constexpr std::size_t kShort = 64;
  void merge_short(std::vector<std::int32_t>& symbols);
  const MergeTable& table_;
  static constexpr int kPlaceBits = 6;
  static constexpr std::size_t kMostRanks = std::size_t{1} << (32 - kPlaceBits);
  static_assert(kShort <= std::size_t{1} << kPlaceBits);
  /// For each symbol of a short word, the pair that begins there: rank and place; kNone: no merge.
  std::array<std::uint32_t, kShort + 16> weights_{};
  std::array<std::int32_t, kShort + 16> merged_{};  ///< the pair's merged id
  std::array<std::uint8_t, kShort + 1> next_{}, before_{};
  class LongMerge;
  std::unique_ptr<LongMerge> long_;  ///< made for the first long word
};

}  // namespace sherd::tokenizer
