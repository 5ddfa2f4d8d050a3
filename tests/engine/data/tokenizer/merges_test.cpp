#include "engine/data/tokenizer/merges.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace sherd::tokenizer {
namespace {

using Ids = std::vector<std::int32_t>;

/// The definition: the pair of lowest rank, of those the leftmost, until there is none.
Ids merged_by_definition(const std::vector<MergeTable::Merge>& merges, Ids ids) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> ranks;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    ranks[{merges[rank].left, merges[rank].right}] = rank;
  }
  while (true) {
    std::size_t best = merges.size();
    std::size_t place = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = ranks.find({ids[i], ids[i + 1]});
      if (found == ranks.end() || found->second >= best) continue;
      best = found->second;
      place = i;
    }
    if (best == merges.size()) return ids;
    ids[place] = merges[best].merged;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

/// Tokens are texts over a few letters, and what merges make are their concatenations.
std::vector<MergeTable::Merge> random_merges(std::mt19937& draw, int num_letters, int count) {
  std::vector<std::string> texts;
  for (int letter = 0; letter < num_letters; ++letter) texts.emplace_back(1, char('a' + letter));
  std::map<std::string, std::int32_t> ids;
  for (const auto& text : texts) ids[text] = static_cast<std::int32_t>(ids.size());
  std::vector<MergeTable::Merge> merges;
  for (int i = 0; i < count; ++i) {
    const std::string left = texts[draw() % texts.size()];
    const std::string right = texts[draw() % texts.size()];
    if (left.size() + right.size() > 12) continue;
    const auto [place, is_new] =
        ids.try_emplace(left + right, static_cast<std::int32_t>(ids.size()));
    if (is_new) texts.push_back(left + right);
    merges.push_back({ids[left], ids[right], place->second});
  }
  std::shuffle(merges.begin(), merges.end(), draw);  // a longer token may have a lower rank
  return merges;
}

TEST(Merger, DoesWhatTheDefinitionSaysForShortAndLongWords) {
  std::mt19937 draw(1);
  for (int table_number = 0; table_number < 60; ++table_number) {
    const int num_letters = 1 + static_cast<int>(draw() % 4);
    // The result of merging two symbols is precomputed for all letters, some or none; for some merged symbols too.
    std::vector<std::int32_t> usual;
    for (int symbol = 0; symbol < 6; ++symbol) {
      if (table_number % 3 == 0 || (table_number % 3 == 1 && draw() % 2 == 0)) {
        usual.push_back(symbol);
      }
    }
    const MergeTable table(random_merges(draw, num_letters, 5 + static_cast<int>(draw() % 80)),
                           usual);
    Merger merger(table);
    for (const std::size_t size : {0, 1, 2, 3, 17, 63, 64, 65, 66, 200, 500}) {
      Ids word(size);
      for (auto& id : word)
        id = static_cast<std::int32_t>(draw() % static_cast<unsigned>(num_letters));
      const Ids expected = merged_by_definition(table.merges(), word);
      merger.merge(word);
      EXPECT_EQ(word, expected) << "table " << table_number << ", " << size << " symbols";
    }
  }
}

TEST(Merger, OfEqualPairsInALongWordTheLeftmostIsMergedThoughItWasMadeLast) {
  // 5 is made of 0 1 before it is made of 2 3, so the pair (5, 5) on the right is there first.
  const MergeTable table({{0, 1, 5}, {2, 3, 5}, {5, 5, 6}});
  Ids word;
  Ids expected;
  for (int i = 0; i < 20; ++i) {
    word.insert(word.end(), {2, 3, 0, 1, 0, 1, 4});
    expected.insert(expected.end(), {6, 5, 4});
  }
  Merger(table).merge(word);
  EXPECT_EQ(word, expected);
}

TEST(MergeTable, OfAPairListedTwiceTheLastRankCounts) {
  const MergeTable table({{0, 1, 5}, {1, 2, 6}, {0, 1, 5}});
  EXPECT_EQ(table.rank(0, 1), 2u);
  EXPECT_EQ(table.rank(1, 2), 1u);
  EXPECT_EQ(table.rank(2, 1), MergeTable::kNone);
}

TEST(Merger, AMillionEqualSymbolsBecomeTheLongestTokens) {
  std::vector<MergeTable::Merge> merges;
  for (int i = 0; i < 6; ++i) merges.push_back({i, i, i + 1});  // 2, 4, ..., 64 letters
  const MergeTable table(merges);
  Merger merger(table);
  Ids word(1'000'000);
  merger.merge(word);
  EXPECT_EQ(word, Ids(1'000'000 / 64, 6));
}

}  // namespace
}  // namespace sherd::tokenizer
