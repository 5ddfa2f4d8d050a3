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

MergeTable::MergeTable(std::vector<Merge> merges) : merges_(std::move(merges)) {
  slots_.resize(std::bit_ceil(merges_.size() * 2 + 2));
  mask_ = slots_.size() - 1;
  for (std::size_t rank = 0; rank < merges_.size(); ++rank) {
    const std::uint64_t key = key_of(merges_[rank].left, merges_[rank].right);
    std::size_t slot = hash(key) & mask_;
    while (slots_[slot].rank != kNone && slots_[slot].key != key) slot = (slot + 1) & mask_;
    slots_[slot] = {key, static_cast<std::uint32_t>(rank), merges_[rank].merged};
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
    CHECK(symbols.size() < MergeTable::kNone, "{} symbols in a word", symbols.size());
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
  if (symbols.size() <= kShort) {
    merge_short(symbols);
    return;
  }
  if (!long_) long_ = std::make_unique<LongMerge>(table_);
  long_->merge(symbols);
}

void Merger::merge_short(std::vector<std::int32_t>& symbols) {
  // A multiple of the width at which ranks are compared.
  constexpr std::size_t kBlock = 8;
  std::size_t count = symbols.size();
  const auto look_up = [&](std::size_t i) {
    const MergeTable::Found found = table_.find(symbols[i], symbols[i + 1]);
    ranks_[i] = found.rank;
    merged_[i] = found.merged;
  };
  for (std::size_t i = 0; i + 1 < count; ++i) table_.fetch(symbols[i], symbols[i + 1]);
  for (std::size_t i = 0; i + 1 < count; ++i) look_up(i);
  std::fill_n(ranks_.begin() + static_cast<std::ptrdiff_t>(count) - 1, kBlock, MergeTable::kNone);
  while (true) {
    std::array<std::uint32_t, kBlock> least;
    least.fill(MergeTable::kNone);
    for (std::size_t i = 0; i < count; i += kBlock) {
      for (std::size_t j = 0; j < kBlock; ++j) least[j] = std::min(least[j], ranks_[i + j]);
    }
    const std::uint32_t rank = *std::min_element(least.begin(), least.end());
    if (rank == MergeTable::kNone) break;
    std::size_t best = 0;
    while (ranks_[best] != rank) ++best;
    symbols[best] = merged_[best];
    --count;
    for (std::size_t i = best + 1; i < count; ++i) {
      symbols[i] = symbols[i + 1];
      ranks_[i] = ranks_[i + 1];
      merged_[i] = merged_[i + 1];
    }
    ranks_[count] = MergeTable::kNone;
    const bool has_next = best + 1 < count;
    if (has_next) table_.fetch(symbols[best], symbols[best + 1]);
    if (best > 0) look_up(best - 1);
    if (has_next) {
      look_up(best);
    } else {
      ranks_[best] = MergeTable::kNone;
    }
  }
  symbols.resize(count);
}

}  // namespace sherd::tokenizer
