#include "engine/model/mlp/expert_rounds.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"

namespace sherd::model {
namespace {

// Adds a piece to a range that it follows.
void extend(kernels::RowRange& range, std::int64_t first, std::int64_t count) {
  if (range.count == 0) range.first = first;
  range.count += count;
}

ExpertRound empty_round(int ranks) {
  const auto size = static_cast<std::size_t>(ranks);
  return {std::vector<kernels::RowRange>(size), std::vector<kernels::RowRange>(size), {}};
}

// What is left of an owner's rows, in their order.
class OwnersRows {
 public:
  /// `counts` [R, E]; `home`: where the source's rows for this owner begin, by source.
  OwnersRows(std::span<const std::int32_t> counts, int ranks, int owner,
             std::vector<std::int64_t> home)
      : counts_(counts),
        experts_(std::ssize(counts) / ranks),
        held_(experts_ / ranks),
        owner_(owner),
        ranks_(ranks),
        home_(std::move(home)) {
    skip_empty();
  }

  int source() const { return source_; }  ///< of the next piece; R: there is none
  std::int64_t next_count() const { return std::min(kernels::kExpertPiece, rows() - first_); }
  /// The next piece, at `place` of a buffer, and the home row at which it begins.
  kernels::ExpertPiece take(std::int64_t place, std::int64_t& home_row) {
    const std::int64_t count = next_count();
    const kernels::ExpertPiece piece{static_cast<int>(expert_), source_, place, count, first_ == 0};
    home_row = home_[static_cast<std::size_t>(source_)];
    home_[static_cast<std::size_t>(source_)] += count;
    first_ += count;
    skip_empty();
    return piece;
  }

 private:
  std::int64_t rows() const {
    return counts_[static_cast<std::size_t>(source_ * experts_ + owner_ * held_ + expert_)];
  }
  void skip_empty() {
    while (source_ < ranks_ && first_ == rows()) {
      first_ = 0;
      if (++expert_ < held_) continue;
      expert_ = 0;
      ++source_;
    }
  }

  std::span<const std::int32_t> counts_;
  std::int64_t experts_, held_;
  int owner_, ranks_;
  std::vector<std::int64_t> home_;
  int source_ = 0;
  std::int64_t expert_ = 0, first_ = 0;
};

std::vector<OwnersRows> rows_of_owners(std::span<const std::int32_t> counts, int ranks) {
  const std::int64_t experts = std::ssize(counts) / ranks, held = experts / ranks;
  std::vector<OwnersRows> owners;
  std::vector<std::int64_t> home(static_cast<std::size_t>(ranks), 0);
  for (int owner = 0; owner < ranks; ++owner) {
    owners.emplace_back(counts, ranks, owner, home);
    for (int source = 0; source < ranks; ++source) {
      const auto first = counts.begin() + source * experts + owner * held;
      home[static_cast<std::size_t>(source)] =
          std::accumulate(first, first + held, home[static_cast<std::size_t>(source)]);
    }
  }
  return owners;
}

}  // namespace

std::vector<ExpertRound> expert_rounds(std::span<const std::int32_t> counts, int ranks, int rank,
                                       std::int64_t buffer_rows) {
  std::vector<OwnersRows> owners = rows_of_owners(counts, ranks);
  const auto complete = [&owners] {
    return std::ranges::min(owners, {}, &OwnersRows::source).source();
  };
  std::vector<ExpertRound> rounds;
  while (complete() < ranks) {
    ExpertRound& round = rounds.emplace_back(empty_round(ranks));
    std::vector<std::int64_t> filled(owners.size(), 0);
    // An owner goes on when the others have caught up within the round.
    for (int before = -1; before < complete();) {
      before = complete();
      for (std::size_t o = 0; o < owners.size(); ++o) {
        OwnersRows& owner = owners[o];
        while (owner.source() < std::min(ranks, before + 2) &&
               filled[o] + owner.next_count() <= buffer_rows) {
          const int source = owner.source();
          std::int64_t home_row = 0;
          const kernels::ExpertPiece piece = owner.take(filled[o], home_row);
          if (source == rank) extend(round.sends[o], home_row, piece.count);
          if (static_cast<int>(o) == rank) {
            extend(round.receives[static_cast<std::size_t>(source)], filled[o], piece.count);
            round.pieces.push_back(piece);
          }
          filled[o] += piece.count;
        }
      }
    }
    SHERD_CHECK(std::ranges::any_of(filled, [](std::int64_t rows) { return rows > 0; }),
                "no piece fits a buffer of {} rows", buffer_rows);
    round.complete_sources = complete();
  }
  return rounds;
}

std::int64_t fewest_rounds(const kernels::ExpertsShape& owned, std::int64_t rows) {
  return std::max<std::int64_t>(1, (rows + owned.buffer_rows - 1) / owned.buffer_rows);
}

// While the slowest owner isn't through with a source, two rounds that follow one another bring it
// more rows of it than a buffer has.
std::int64_t most_rounds(const kernels::ExpertsShape& owned, std::int64_t rows, int ranks) {
  if (rows <= owned.buffer_rows) return 1;
  return 2 * rows / owned.buffer_rows + 2 * ranks;
}

}  // namespace sherd::model
