#include "engine/data/tokenizer/merges.h"

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <functional>
#include <utility>

#include "core/error.h"

namespace sherd::tokenizer {
namespace {

/// A set of ranks that knows its smallest: three levels of bits, 64 children to a word.
class RankSet {
 public:
  explicit RankSet(std::size_t num_ranks) {
    for (auto& level : levels_) {
      num_ranks = num_ranks / 64 + 1;
      level.resize(num_ranks);
    }
  }
  void add(std::uint32_t rank) {
    for (auto& level : levels_) {
      level[rank / 64] |= std::uint64_t{1} << (rank % 64);
      rank /= 64;
    }
  }
  void remove(std::uint32_t rank) {
    for (auto& level : levels_) {
      level[rank / 64] &= ~(std::uint64_t{1} << (rank % 64));
      if (level[rank / 64] != 0) return;
      rank /= 64;
    }
  }
  /// MergeTable::kNone if it is empty.
  std::uint32_t smallest() const {
    const auto& top = levels_.back();
    const auto word = std::find_if(top.begin(), top.end(), [](auto bits) { return bits != 0; });
    if (word == top.end()) return MergeTable::kNone;
    auto rank = static_cast<std::uint32_t>(word - top.begin());
    for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
      rank = rank * 64 + static_cast<std::uint32_t>(std::countr_zero((*level)[rank]));
    }
    return rank;
  }

 private:
  std::array<std::vector<std::uint64_t>, 3> levels_;
};

/// Positions, smallest first.
class PositionQueue {
 public:
  bool empty() const { return first_ == positions_.size(); }
  void push(std::uint32_t position) {
    if (!is_heap_ && !empty() && position < positions_.back()) {
      positions_.erase(positions_.begin(),
                       positions_.begin() + static_cast<std::ptrdiff_t>(first_));
      first_ = 0;  // what is left is sorted, and so a heap
      is_heap_ = true;
    }
    positions_.push_back(position);
    if (is_heap_) std::push_heap(positions_.begin(), positions_.end(), std::greater<>());
  }
  std::uint32_t pop() {
    std::uint32_t position = 0;
    if (is_heap_) {
      std::pop_heap(positions_.begin(), positions_.end(), std::greater<>());
      position = positions_.back();
      positions_.pop_back();
    } else {
      position = positions_[first_++];
    }
    if (empty()) {
      positions_.clear();
      first_ = 0;
      is_heap_ = false;
    }
    return position;
  }

 private:
  std::vector<std::uint32_t> positions_;
  std::size_t first_ = 0;
  bool is_heap_ = false;
};

}  // namespace

MergeTable::MergeTable(std::vector<Merge> merges, const std::vector<std::int32_t>& usual)
    : merges_(std::move(merges)) {
  slots_.resize(std::bit_ceil(merges_.size() * 2 + 2));
  mask_ = slots_.size() - 1;
  for (std::size_t rank = 0; rank < merges_.size(); ++rank) {
    const std::uint64_t key = key_of(merges_[rank].left, merges_[rank].right);
    std::size_t slot = hash(key) & mask_;
    while (slots_[slot].rank != kNone && slots_[slot].key != key) slot = (slot + 1) & mask_;
    slots_[slot] = {key, static_cast<std::uint32_t>(rank), merges_[rank].merged};
  }
  SHERD_CHECK(usual.size() < 256, "{} usual symbols", usual.size());
  num_usual_ = usual.size() + 1;
  usual_.resize(num_usual_ * num_usual_);
  for (std::size_t x = 0; x < usual.size(); ++x) {
    const auto symbol = static_cast<std::size_t>(usual[x]);
    if (numbers_.size() <= symbol) numbers_.resize(symbol + 1);
    numbers_[symbol] = static_cast<std::uint8_t>(x + 1);
    for (std::size_t y = 0; y < usual.size(); ++y) {
      usual_[(x + 1) * num_usual_ + y + 1] = find(usual[x], usual[y]);
    }
  }
}

/// A linked list of symbols and the rank of every pair.
class Merger::LongMerge {
 public:
  explicit LongMerge(const MergeTable& table)
      : table_(table),
        waiting_(table.merges().size()),
        queue_of_(table.merges().size(), kNoQueue) {}

  void merge(std::vector<std::int32_t>& symbols) {
    SHERD_CHECK(symbols.size() < MergeTable::kNone, "{} symbols in a word", symbols.size());
    links_.resize(symbols.size());
    const auto count = static_cast<std::uint32_t>(symbols.size());
    for (std::uint32_t i = 0; i < count; ++i) {
      links_[i] = {i == 0 ? MergeTable::kNone : i - 1, i + 1 == count ? MergeTable::kNone : i + 1,
                   MergeTable::kNone};
    }
    for (std::uint32_t i = 0; i + 1 < count; ++i) rank_pair(symbols, i);
    while (true) {
      const std::uint32_t rank = waiting_.smallest();
      if (rank == MergeTable::kNone) break;
      PositionQueue& queue = queues_[queue_of_[rank]];
      const std::uint32_t position = queue.pop();
      if (queue.empty()) retire(rank);
      if (links_[position].rank == rank) merge_at(symbols, position, rank);
    }
    std::size_t kept = 0;
    for (std::uint32_t i = 0; i != MergeTable::kNone; i = links_[i].next) {
      symbols[kept++] = symbols[i];
    }
    symbols.resize(kept);
  }

 private:
  static constexpr std::uint32_t kNoQueue = 0xffffffff;
  struct Link {
    std::uint32_t previous;
    std::uint32_t next;
    std::uint32_t rank;  ///< of the pair with the next one; kNone for a symbol that is gone
  };

  void merge_at(std::vector<std::int32_t>& symbols, std::uint32_t position, std::uint32_t rank) {
    Link& link = links_[position];
    symbols[position] = table_.merges()[rank].merged;
    Link& gone = links_[link.next];
    gone.rank = MergeTable::kNone;
    link.next = gone.next;
    if (link.next != MergeTable::kNone) links_[link.next].previous = position;
    if (link.previous != MergeTable::kNone) rank_pair(symbols, link.previous);
    rank_pair(symbols, position);
  }

  /// Looks the pair at `position` up and queues it.
  void rank_pair(const std::vector<std::int32_t>& symbols, std::uint32_t position) {
    Link& link = links_[position];
    link.rank = link.next == MergeTable::kNone ? MergeTable::kNone
                                               : table_.rank(symbols[position], symbols[link.next]);
    if (link.rank == MergeTable::kNone) return;
    std::uint32_t& queue = queue_of_[link.rank];
    if (queue == kNoQueue) {
      if (free_.empty()) {
        free_.push_back(static_cast<std::uint32_t>(queues_.size()));
        queues_.emplace_back();
      }
      queue = free_.back();
      free_.pop_back();
      waiting_.add(link.rank);
    }
    queues_[queue].push(position);
  }

  void retire(std::uint32_t rank) {
    free_.push_back(queue_of_[rank]);
    queue_of_[rank] = kNoQueue;
    waiting_.remove(rank);
  }

  const MergeTable& table_;
  std::vector<Link> links_;
  RankSet waiting_;                      ///< ranks with a queue
  std::vector<std::uint32_t> queue_of_;  ///< of a rank
  std::deque<PositionQueue> queues_;
  std::vector<std::uint32_t> free_;
};

Merger::Merger(const MergeTable& table) : table_(table) {}
Merger::~Merger() = default;

void Merger::merge(std::vector<std::int32_t>& symbols) {
  if (symbols.size() < 2) return;
  if (symbols.size() <= kShort && table_.merges().size() < kMostRanks) {
    merge_short(symbols);
    return;
  }
  if (!long_) long_ = std::make_unique<LongMerge>(table_);
  long_->merge(symbols);
}

// Symbols stay in place; symbols merged into the previous one are skipped. A pair's weight contains
// its place, so the smallest weight is the leftmost pair of the lowest rank.
void Merger::merge_short(std::vector<std::int32_t>& symbols) {
  constexpr std::size_t kBlock = 8;  // the width at which weights are compared
  const std::size_t count = symbols.size();
  const auto know = [&](std::size_t i, const MergeTable::Found& found) {
    weights_[i] = found.rank == MergeTable::kNone
                      ? MergeTable::kNone
                      : found.rank << kPlaceBits | static_cast<std::uint32_t>(i);
    merged_[i] = found.merged;
  };
  const auto look_up = [&](std::size_t i, std::size_t next) {
    know(i, table_.find(symbols[i], symbols[next]));
  };
  for (std::size_t i = 0; i + 1 < count; ++i) table_.fetch_first(symbols[i], symbols[i + 1]);
  for (std::size_t i = 0; i + 1 < count; ++i) {
    know(i, table_.find_first(symbols[i], symbols[i + 1]));
  }
  std::fill_n(weights_.begin() + static_cast<std::ptrdiff_t>(count) - 1, kBlock, MergeTable::kNone);
  for (std::size_t i = 0; i < count; ++i) {
    next_[i] = static_cast<std::uint8_t>(i + 1);
    before_[i + 1] = static_cast<std::uint8_t>(i);
  }
  while (true) {
    std::array<std::uint32_t, kBlock> least;
    least.fill(MergeTable::kNone);
    for (std::size_t i = 0; i < count; i += kBlock) {
      for (std::size_t j = 0; j < kBlock; ++j) least[j] = std::min(least[j], weights_[i + j]);
    }
    std::uint32_t weight = MergeTable::kNone;
    for (const std::uint32_t one : least) weight = std::min(weight, one);
    if (weight == MergeTable::kNone) break;
    const std::size_t best = weight % (1u << kPlaceBits), gone = next_[best], next = next_[gone];
    symbols[best] = merged_[best];
    weights_[gone] = MergeTable::kNone;
    next_[best] = static_cast<std::uint8_t>(next);
    before_[next] = static_cast<std::uint8_t>(best);
    const bool has_next = next < count;
    if (has_next) table_.fetch(symbols[best], symbols[next]);
    if (best > 0) look_up(before_[best], best);
    if (has_next) {
      look_up(best, next);
    } else {
      weights_[best] = MergeTable::kNone;
    }
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < count; i = next_[i]) symbols[kept++] = symbols[i];
  symbols.resize(kept);
}

}  // namespace sherd::tokenizer
