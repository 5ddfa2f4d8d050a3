#include "engine/model/mlp/expert_rounds.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "tests/support/values/tensors.h"

namespace sherd::model {
namespace {

using kernels::ExpertPiece;
using kernels::kExpertPiece;
using kernels::RowRange;

using Counts = std::vector<std::int32_t>;

std::vector<std::vector<ExpertRound>> of_all(const Counts& counts, int ranks, std::int64_t rows) {
  std::vector<std::vector<ExpertRound>> all;
  for (int rank = 0; rank < ranks; ++rank) {
    all.push_back(expert_rounds(counts, ranks, rank, rows));
  }
  return all;
}

// No owner begins a source before all owners have had, by the end of that round, the source two places ahead; and
// `complete_sources` says which they have had.
void expect_owners_close_together(const std::vector<std::vector<ExpertRound>>& all,
                                  const Counts& counts, int ranks) {
  const std::int64_t held = std::ssize(counts) / ranks / ranks;
  std::map<std::pair<int, int>, std::int64_t> left;  // rows, by owner and source
  for (int owner = 0; owner < ranks; ++owner) {
    for (int source = 0; source < ranks; ++source) {
      const auto first = counts.begin() + (source * ranks + owner) * held;
      left[{owner, source}] = std::accumulate(first, first + held, std::int64_t{0});
    }
  }
  for (std::size_t n = 0; n < all[0].size(); ++n) {
    for (int owner = 0; owner < ranks; ++owner) {
      for (const ExpertPiece& piece : all[static_cast<std::size_t>(owner)][n].pieces) {
        left[{owner, piece.source}] -= piece.count;
      }
    }
    int complete = 0;
    const auto all_had = [&](int source) {
      for (int owner = 0; owner < ranks; ++owner) {
        if (left[{owner, source}] > 0) return false;
      }
      return true;
    };
    while (complete < ranks && all_had(complete)) ++complete;
    EXPECT_EQ(all[0][n].complete_sources, complete) << "round " << n;
    for (int owner = 0; owner < ranks; ++owner) {
      for (const ExpertPiece& piece : all[static_cast<std::size_t>(owner)][n].pieces) {
        EXPECT_LE(piece.source, complete + 1) << "round " << n << ", owner " << owner;
      }
    }
  }
  EXPECT_TRUE(all[0].empty() || all[0].back().complete_sources == ranks);
}

// What must hold of every plan: each row is sent once, to its owner, who expects it at the same place of the same order;
// nothing lies beyond the buffer.
void expect_whole(const Counts& counts, int ranks, std::int64_t rows) {
  const auto all = of_all(counts, ranks, rows);
  const std::int64_t experts = std::ssize(counts) / ranks, held = experts / ranks;
  std::vector<std::int64_t> sent(static_cast<std::size_t>(ranks), 0);
  std::map<std::pair<int, std::int64_t>, std::int64_t> arrived;  // by source and expert
  for (std::size_t n = 0; n < all[0].size(); ++n) {
    for (int a = 0; a < ranks; ++a) {
      const ExpertRound& round = all[static_cast<std::size_t>(a)][n];
      std::int64_t filled = 0;
      for (int b = 0; b < ranks; ++b) {
        const auto& other = all[static_cast<std::size_t>(b)][n];
        EXPECT_EQ(round.sends[static_cast<std::size_t>(b)].count,
                  other.receives[static_cast<std::size_t>(a)].count);
        const RowRange received = round.receives[static_cast<std::size_t>(b)];
        if (received.count > 0) {
          EXPECT_EQ(received.first, filled);
        }
        filled += received.count;
        sent[static_cast<std::size_t>(a)] += round.sends[static_cast<std::size_t>(b)].count;
      }
      EXPECT_LE(filled, rows);
      std::int64_t at = 0;
      for (const ExpertPiece& piece : round.pieces) {
        EXPECT_EQ(piece.first, at);
        at += piece.count;
        std::int64_t& before = arrived[{piece.source, a * held + piece.expert}];
        EXPECT_EQ(piece.begins, before == 0);
        EXPECT_EQ(before % kExpertPiece, 0) << "a piece after one that isn't whole";
        before += piece.count;
      }
      EXPECT_EQ(at, filled);
      EXPECT_EQ(round.complete_sources, all[0][n].complete_sources);
    }
  }
  expect_owners_close_together(all, counts, ranks);
  for (int source = 0; source < ranks; ++source) {
    const auto first = counts.begin() + source * experts;
    EXPECT_EQ(sent[static_cast<std::size_t>(source)],
              std::accumulate(first, first + experts, std::int64_t{0}));
    for (std::int64_t e = 0; e < experts; ++e) {
      EXPECT_EQ((arrived[{source, e}]), first[e]) << "source " << source << ", expert " << e;
    }
  }
}

TEST(ExpertRounds, SendEveryRowOnceHoweverRowsAreSpread) {
  for (const int ranks : {1, 2, 4, 8}) {
    for (std::uint64_t seed = 1; seed < 20; ++seed) {
      const std::int64_t experts = ranks * static_cast<std::int64_t>(1 + seed % 3);
      Counts counts = test::random_tokens(ranks * experts, seed % 2 == 0 ? 40 : 1700, seed);
      for (std::size_t i = 0; i < counts.size(); ++i) {
        if ((i + seed) % 3 == 0) counts[i] = 0;
      }
      for (const std::int64_t rows : {512, 513, 1200, 1 << 20}) expect_whole(counts, ranks, rows);
    }
  }
}

TEST(ExpertRounds, AreAsManyAsTheFullestOwnerNeeds) {
  const Counts to_one = {1000, 0, 0, 0, 900, 0, 0, 0};  // two ranks, four experts
  const auto all = of_all(to_one, 2, 1024);
  ASSERT_EQ(all[0].size(), 2u);
  ASSERT_EQ(all[1].size(), 2u);
  // Source 0's pieces of 512 and 488 rows; the 512 of source 1 wait for the next round.
  EXPECT_EQ(all[0][0].receives, (std::vector<RowRange>{{0, 1000}, {0, 0}}));
  EXPECT_EQ(all[0][1].receives[1], (RowRange{0, 900}));
  EXPECT_TRUE(all[1][0].pieces.empty());
  EXPECT_EQ(all[1][1].sends[0], (RowRange{0, 900}));
  EXPECT_TRUE(of_all({0, 0, 0, 0}, 2, 512)[0].empty());
}

// Two groups of ranks whose rows are spread in opposite ways: in one, owner 0 could be far ahead of owner 1.
TEST(ExpertRounds, KeepOwnersTogetherHoweverUnevenTheyAre) {
  Counts counts;
  for (int source = 0; source < 4; ++source) counts.insert(counts.end(), {10, 600, 0, 30});
  const auto all = of_all(counts, 4, 640);
  ASSERT_EQ(all[0].size(), 4u) << "owner 1 needs a round for each source";
  for (int n = 0; n < 4; ++n) {
    EXPECT_EQ(all[0][static_cast<std::size_t>(n)].complete_sources, n + 1);
    for (const ExpertPiece& piece : all[0][static_cast<std::size_t>(n)].pieces) {
      EXPECT_LE(piece.source, n + 2) << "source two places ahead of owner 1";
    }
  }
  expect_whole(counts, 4, 640);
}

TEST(ExpertRounds, AreAsManyAsPlannedForTheFullestOwner) {
  for (std::uint64_t seed = 1; seed < 60; ++seed) {
    const int ranks = 1 << (seed % 3);
    kernels::ExpertsShape owned{.tokens = 1};
    owned.buffer_rows = 512 + static_cast<std::int64_t>(seed * 37 % 900);
    // One owner has most rows of every source.
    Counts counts = test::random_tokens(ranks * ranks * 2, 1500, seed);
    for (int source = 0; source < ranks; ++source) {
      for (int owner = 1; owner < ranks; ++owner) {
        for (int e = 0; e < 2; ++e) {
          auto& other = counts[static_cast<std::size_t>((source * ranks + owner) * 2 + e)];
          other = std::min(other, counts[static_cast<std::size_t>(source * ranks * 2 + e)]);
        }
      }
    }
    std::int64_t rows = 0;
    for (int source = 0; source < ranks; ++source) {
      for (int e = 0; e < 2; ++e) rows += counts[static_cast<std::size_t>(source * ranks * 2 + e)];
    }
    const auto found = std::ssize(expert_rounds(counts, ranks, 0, owned.buffer_rows));
    EXPECT_LE(found, most_rounds(owned, rows, ranks)) << seed;
    EXPECT_GE(found, fewest_rounds(owned, rows)) << seed;
  }
}

TEST(ExpertRounds, ThatFitAreOne) {
  const Counts counts = {3, 0, 2, 1, 1, 4, 0, 1};
  const auto all = of_all(counts, 2, 100);
  ASSERT_EQ(all[0].size(), 1u);
  EXPECT_EQ(all[0][0].pieces,
            (std::vector<ExpertPiece>{{0, 0, 0, 3, true}, {0, 1, 3, 1, true}, {1, 1, 4, 4, true}}));
  EXPECT_EQ(all[1][0].sends, (std::vector<RowRange>{{0, 5}, {5, 1}}));
}

}  // namespace
}  // namespace sherd::model
