// Rows of a step in an order in which any equal, contiguous parts cost about the same.
#include "engine/data/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>

#include "engine/data/batcher.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::data {
namespace {

using Costs = std::vector<std::int64_t>;

// The largest part over the mean.
double spread(const Costs& costs, std::span<const std::int32_t> order, std::size_t num_parts) {
  const std::size_t rows = order.size() / num_parts;
  double largest = 0.0, all = 0.0;
  for (std::size_t part = 0; part < num_parts; ++part) {
    double sum = 0.0;
    for (std::size_t i = 0; i < rows; ++i) {
      sum += static_cast<double>(costs[static_cast<std::size_t>(order[part * rows + i])]);
    }
    largest = std::max(largest, sum);
    all += sum;
  }
  return largest * static_cast<double>(num_parts) / all;
}

TEST(BalancedOrder, HasEveryRowOnceAndKeepsTheOrderOfEqualCosts) {
  const Costs costs = {5, 1, 4, 4, 2, 9, 3};
  std::vector<std::int32_t> order = balanced_order(costs);
  std::ranges::sort(order);
  std::vector<std::int32_t> all(costs.size());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(order, all);
  EXPECT_EQ(balanced_order(Costs(6, 3)), (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_TRUE(balanced_order({}).empty());
}

// By hand: 9 begins the first half, 8 the second, which also gets 2 as the cheaper one; it is reversed.
TEST(BalancedOrder, DealsTheMostExpensiveFirst) {
  EXPECT_EQ(balanced_order(Costs{1, 9, 8, 2}), (std::vector<std::int32_t>{1, 0, 3, 2}));
}

// Two kinds of rows, one of them three times as expensive, with noise: 24 rows on 2 to 6 ranks,
// each of which can have as many of both.
TEST(BalancedOrder, GivesAnyNumberOfRanksAboutTheSameWork) {
  for (std::int64_t key = 0; key < 20; ++key) {
    Costs costs;
    for (std::int64_t i = 0; i < 24; ++i) {
      costs.push_back((i % 2 == 0 ? 3000 : 1000) + (i * 7919 + key * 104729) % 200);
    }
    const std::vector<std::int32_t> order = balanced_order(costs);
    for (const std::size_t ranks : {2, 3, 4, 6}) {
      EXPECT_LE(spread(costs, order, ranks), 1.05) << key << ", " << ranks;
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
  Batcher batches(int world, std::int64_t micro_steps) {
    BatchSources sources;
    sources.training = {{"short", texts("short", 3, 12), 1}, {"long", texts("long", 56, 64), 1}};
    return Batcher(std::move(sources), {.seq_length = 64,
                                        .micro_batch_size = 24 / world / micro_steps,
                                        .num_micro_steps = micro_steps,
                                        .world = world,
                                        .seed = 3});
  }

  test::TempFolder folder_;
};

TEST_F(BalancedBatches, OfSeveralSourcesGiveRanksWithin5PercentTheSameWork) {
  for (const auto& [world, micro_steps] :
       {std::pair(2, 1), {3, 1}, {4, 1}, {6, 1}, {2, 2}, {3, 2}, {6, 2}, {4, 6}, {2, 12}}) {
    EXPECT_LE(batches(world, micro_steps).imbalance(0, 16), 1.05) << world << " " << micro_steps;
  }
}

TEST_F(BalancedBatches, HaveTheSameRowsInTheSameOrderOnAnyRanks) {
  const Batcher one = batches(1, 1), four = batches(4, 2);
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

}  // namespace
}  // namespace sherd::data
