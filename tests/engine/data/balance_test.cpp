// Rows of a step in an order in which any equal, contiguous parts cost about the same.
#include "engine/data/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>

#include "engine/data/batcher.h"
#include "engine/data/one_sequence.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::data {
namespace {

using Costs = std::vector<std::int64_t>;

// What a step waits for, over the mean, as balance.h defines it: of `ranks` in each replica.
double waited(const Costs& costs, const StepParts& parts, std::int64_t ranks) {
  const std::vector<std::int32_t> order = balanced_order(costs, parts);
  const auto of_replica = std::ssize(costs) / parts.num_replicas;
  std::int64_t waited_for = 0;
  for (std::int64_t replica = 0; replica < parts.num_replicas; ++replica) {
    std::int64_t sum = 0;
    for (std::int64_t step = 0; step < of_replica; step += ranks * parts.micro_batch_size) {
      std::int64_t most = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        std::int64_t work = 0;
        for (std::int64_t row = 0; row < parts.micro_batch_size; ++row) {
          const std::int64_t at = replica * of_replica + step + rank * parts.micro_batch_size + row;
          work += costs[static_cast<std::size_t>(order[static_cast<std::size_t>(at)])];
        }
        most = std::max(most, work);
      }
      sum += most;
    }
    waited_for = std::max(waited_for, sum);
  }
  const auto all = std::accumulate(costs.begin(), costs.end(), std::int64_t{0});
  return static_cast<double>(waited_for * ranks * parts.num_replicas) / static_cast<double>(all);
}

TEST(BalancedOrder, HasEveryRowOnceAndKeepsTheOrderOfEqualCosts) {
  const Costs costs = {5, 1, 4, 4, 2, 9, 3, 8};
  for (const StepParts parts : {StepParts{1, 1}, {2, 2}, {4, 1}, {8, 1}, {1, 4}}) {
    std::vector<std::int32_t> order = balanced_order(costs, parts);
    std::ranges::sort(order);
    std::vector<std::int32_t> all(costs.size());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(order, all);
  }
  EXPECT_EQ(balanced_order(Costs(6, 3), {2, 1}), (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_TRUE(balanced_order({}, {1, 1}).empty());
}

// By hand: 9 begins the first micro-batch, 8 the second, which also gets 2 as the cheaper one. Both
// cost 10.
TEST(BalancedOrder, DealsTheMostExpensiveFirst) {
  EXPECT_EQ(balanced_order(Costs{1, 9, 8, 2}, {2, 1}), (std::vector<std::int32_t>{1, 0, 2, 3}));
}

// Graham's example of 1969: dealing 5 5 4 4 3 3 3 in this order gives 11 and 16 of 27 on two parts
// with room for 4 (a row of 0 fills up): 5 4 3 3 = 15 and 5 4 3 0 = 12. The exchange of 5 and 4 or 4
// and 3 gives 14 and 13, and no assignment is better.
TEST(BalancedOrder, ExchangesRowsUntilNothingIsGained) {
  EXPECT_DOUBLE_EQ(waited({5, 5, 4, 4, 3, 3, 3, 0}, {4, 1}, 2), 28.0 / 27.0);
}

// Micro-batches of three rows cost 5 or 7: those of equal cost meet in a micro-step. On 8 ranks
// they can't: 7 of 6.
TEST(BalancedOrder, LetsMicroBatchesOfEqualCostMeet) {
  Costs costs;
  for (int i = 0; i < 12; ++i) costs.insert(costs.end(), {3, 1});
  for (const std::int64_t ranks : {1, 2, 4}) EXPECT_DOUBLE_EQ(waited(costs, {3, 1}, ranks), 1.0);
  EXPECT_DOUBLE_EQ(waited(costs, {3, 1}, 8), 7.0 / 6.0);
  EXPECT_DOUBLE_EQ(waited(costs, {3, 2}, 2), 1.0) << "replicas have the same work";
}

// A row of 24 others' work: its micro-batch has to wait for no more than it.
TEST(BalancedOrder, PutsCheapRowsNextToOneThatIsTooExpensive) {
  Costs costs(24, 10);
  costs[7] = 240;
  EXPECT_DOUBLE_EQ(waited(costs, {6, 1}, 4), 4.0 * 290.0 / 470.0);
}

// Two kinds of rows, one of them three times as expensive, with noise.
TEST(BalancedOrder, GivesAnyNumberOfRanksAboutTheSameWork) {
  for (std::int64_t key = 0; key < 20; ++key) {
    Costs costs;
    for (std::int64_t i = 0; i < 48; ++i) {
      costs.push_back((i % 2 == 0 ? 3000 : 1000) + (i * 7919 + key * 104729) % 200);
    }
    for (const std::int64_t rows : {1, 2, 3, 4, 6, 8, 12, 24}) {
      for (const std::int64_t ranks : {2, 3, 4, 6, 8, 12, 24}) {
        if (24 % (rows * ranks) != 0) continue;
        EXPECT_LE(waited(costs, {rows, 1}, ranks), 1.05) << key << ": " << rows << ", " << ranks;
        if (rows % 2 == 1 && 12 % (rows * ranks) != 0) continue;  // 12 of each kind in a replica
        EXPECT_LE(waited(costs, {rows, 2}, ranks), 1.05) << key << ": " << rows << ", " << ranks;
      }
    }
  }
}

// Texts of documents: short ones, and ones that fill sequences of 64 bytes.
class BalancedBatches : public ::testing::Test {
 protected:
  std::shared_ptr<const Dataset> texts(const std::string& name, int shortest, int longest) {
    std::string lines;
    for (int i = 0; i < 400; ++i) {
      const int length = shortest + i * 7919 % (longest - shortest + 1);
      lines += "{\"text\": \"" + std::string(static_cast<std::size_t>(length), 'a') + "\"}\n";
    }
    return open_dataset({.path = folder_.write(name + ".jsonl", lines),
                         .validation_fraction = 0,
                         .seq_length = 64,
                         .separate_documents = true});
  }
  Batcher batches(int world, std::int64_t micro_steps, int replicas = 1) {
    BatchSources sources;
    sources.training = {{"short", texts("short", 3, 12), 1}, {"long", texts("long", 56, 64), 1}};
    return Batcher(std::move(sources), {.seq_length = 64,
                                        .micro_batch_size = 24 / world / micro_steps,
                                        .num_micro_steps = micro_steps,
                                        .world = world,
                                        .num_replicas = replicas,
                                        .seed = 3});
  }

  test::TempFolder folder_;
};

TEST_F(BalancedBatches, OfSeveralSourcesGiveRanksWithin5PercentTheSameWork) {
  for (const auto& [world, micro_steps] : {std::pair(2, 1),
                                           {3, 1},
                                           {4, 1},
                                           {6, 1},
                                           {2, 2},
                                           {3, 2},
                                           {4, 2},
                                           {6, 2},
                                           {4, 3},
                                           {4, 6},
                                           {2, 12}}) {
    EXPECT_LE(batches(world, micro_steps).imbalance(0, 16), 1.05) << world << " " << micro_steps;
  }
  EXPECT_LE(batches(4, 2, 2).imbalance(0, 16), 1.05);
}

// A micro-batch of 3 rows has an odd number of long ones and short ones.
TEST_F(BalancedBatches, OfThreeRowsOnEightRanksAreAsEqualAsWholeRowsCanBe) {
  const double imbalance = batches(8, 1).imbalance(0, 16);
  EXPECT_GT(imbalance, 1.2);
  EXPECT_LT(imbalance, 1.4);
}

TEST_F(BalancedBatches, HaveTheSameRowsInTheSameOrderOnAnyRanks) {
  const Batcher one = batches(1, 8), four = batches(4, 2);
  const Mixture mixture({1, 1});
  for (std::int64_t step = 0; step < 8; ++step) {
    std::vector<std::pair<int, std::int64_t>> rows, expected;
    for (std::int64_t row = 0; row < 24; ++row) {
      const Mixture::Place place = one.place_of(step * 24 + row);
      EXPECT_EQ(place.number, four.place_of(step * 24 + row).number);
      EXPECT_EQ(place.source, four.place_of(step * 24 + row).source);
      rows.emplace_back(place.source, place.number);
      const Mixture::Place of_mixture = mixture.at(step * 24 + row);
      expected.emplace_back(of_mixture.source, of_mixture.number);
    }
    EXPECT_NE(rows, expected) << "their work differs";
    std::ranges::sort(rows);
    std::ranges::sort(expected);
    EXPECT_EQ(rows, expected) << "the rows of the mixture";
  }
}

// `sherd data` and `sherd score` read a batch row by row.
TEST_F(BalancedBatches, AreReadOneAtATimeInTheSameOrder) {
  const Batcher four = batches(4, 2, 2);
  BatchSources sources;
  sources.training = {{"short", texts("short", 3, 12), 1}, {"long", texts("long", 56, 64), 1}};
  const Batcher one(std::move(sources), one_at_a_time(four.shape()));
  for (std::int64_t sample = 0; sample < 96; ++sample) {
    EXPECT_EQ(one.place_of(sample).number, four.place_of(sample).number) << sample;
    EXPECT_EQ(one.place_of(sample).source, four.place_of(sample).source) << sample;
  }
}

}  // namespace
}  // namespace sherd::data
