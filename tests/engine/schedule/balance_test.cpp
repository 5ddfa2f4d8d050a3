#include "engine/schedule/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <tuple>

#include "core/error.h"
#include "tests/support/values/error_text.h"

namespace sherd::schedule {
namespace {

using test::error_text;

LayerTimes equal_layers(int count, double embedding, double head) {
  constexpr double kLayer = 1e6;
  return {.embedding = Duration(static_cast<Duration::rep>(kLayer * embedding)),
          .layers = std::vector<Duration>(static_cast<std::size_t>(count), Duration(1'000'000)),
          .head = Duration(static_cast<Duration::rep>(kLayer * head))};
}

// Llama 3 405B has 126 layers so that its first and last of 16 stages carry one less than the others,
// when embedding and head count as a layer each.
TEST(Balance, DealsLlama405BAsItsAuthorsDid) {
  std::vector<int> expected(16, 8);
  expected.front() = expected.back() = 7;
  EXPECT_EQ(balanced_layers(equal_layers(126, 1.0, 1.0), 16), expected);
}

// Llama 3 8B: 32 layers, and a head of some 2.3.
TEST(Balance, AHeadOfALargeVocabularyCostsTheLastChunkLayers) {
  EXPECT_EQ(balanced_layers(equal_layers(32, 0.0, 2.3), 4), (std::vector<int>{8, 9, 9, 6}));
}

TEST(Balance, OfEqualChoicesEarlyChunksAreShort) {
  EXPECT_EQ(balanced_layers(equal_layers(10, 0.0, 0.0), 4), (std::vector<int>{2, 2, 3, 3}));
  EXPECT_EQ(balanced_layers(equal_layers(4, 0.0, 9.0), 4), (std::vector<int>{1, 1, 1, 1}));
  EXPECT_EQ(balanced_layers(equal_layers(5, 0.0, 0.0), 1), (std::vector<int>{5}));
}

// All ways to deal, tried one by one.
void deal(const LayerTimes& times, int chunks, std::vector<int>& layers,
          std::vector<std::vector<int>>& all) {
  const int left =
      static_cast<int>(times.layers.size()) - std::accumulate(layers.begin(), layers.end(), 0);
  if (static_cast<int>(layers.size()) + 1 == chunks) {
    all.push_back(layers);
    all.back().push_back(left);
    return;
  }
  for (int count = 1; count <= left - (chunks - static_cast<int>(layers.size()) - 1); ++count) {
    layers.push_back(count);
    deal(times, chunks, layers, all);
    layers.pop_back();
  }
}

TEST(Balance, NoOtherWayToDealHasAFasterSlowestChunkOrEvenerOthers) {
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    LayerTimes times{
        .embedding = Duration(random() % 5), .layers = {}, .head = Duration(random() % 20)};
    const int num_layers = 1 + static_cast<int>(random() % 9);
    for (int layer = 0; layer < num_layers; ++layer) {
      times.layers.emplace_back(1 + random() % 9);
    }
    const int chunks = 1 + static_cast<int>(random() % static_cast<unsigned>(num_layers));
    const auto measure = [&](const std::vector<int>& layers) {
      Duration::rep most = 0, squares = 0;
      std::size_t layer = 0;
      for (int chunk = 0; chunk < chunks; ++chunk) {
        Duration time = chunk == 0 ? times.embedding : Duration{};
        if (chunk == chunks - 1) time += times.head;
        for (int count = layers[static_cast<std::size_t>(chunk)]; count > 0; --count) {
          time += times.layers[layer++];
        }
        EXPECT_TRUE(layer <= times.layers.size());
        most = std::max(most, time.count());
        squares += time.count() * time.count();
      }
      return std::pair(most, squares);
    };
    std::vector<int> layers;
    std::vector<std::vector<int>> all;
    deal(times, chunks, layers, all);
    const std::vector<int> dealt = balanced_layers(times, chunks);
    const auto best = measure(dealt);
    for (const std::vector<int>& other : all) EXPECT_LE(best, measure(other));
    EXPECT_NE(std::find(all.begin(), all.end(), dealt), all.end());
    const std::vector<Duration> chunk_sums = chunk_times(times, dealt);
    EXPECT_EQ(std::max_element(chunk_sums.begin(), chunk_sums.end())->count(), best.first);
  }
}

// Of several best ways the one whose late chunks have the most layers, the last one first.
TEST(Balance, OfTheBestWaysTheOneWithTheShortestEarlyChunksIsTaken) {
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    LayerTimes times{
        .embedding = Duration(random() % 3), .layers = {}, .head = Duration(random() % 4)};
    const int num_layers = 1 + static_cast<int>(random() % 10);
    for (int layer = 0; layer < num_layers; ++layer) times.layers.emplace_back(random() % 3);
    const int chunks = 1 + static_cast<int>(random() % static_cast<unsigned>(num_layers));
    const auto measure = [&](const std::vector<int>& layers) {
      const std::vector<Duration> sums = chunk_times(times, layers);
      Duration::rep squares = 0;
      for (const Duration& sum : sums) squares += sum.count() * sum.count();
      std::vector<int> from_the_end(layers.rbegin(), layers.rend());
      for (int& count : from_the_end) count = -count;  // more is better
      return std::tuple(std::max_element(sums.begin(), sums.end())->count(), squares, from_the_end);
    };
    std::vector<int> layers;
    std::vector<std::vector<int>> all;
    deal(times, chunks, layers, all);
    const auto best = *std::min_element(all.begin(), all.end(), [&](const auto& a, const auto& b) {
      return measure(a) < measure(b);
    });
    EXPECT_EQ(balanced_layers(times, chunks), best);
  }
}

TEST(Balance, DealsTenThousandLayersToAThousandChunks) {
  std::mt19937 random(5);
  LayerTimes times{.embedding = {}, .layers = {}, .head = Duration(30'000'000)};
  for (int layer = 0; layer < 10'000; ++layer) times.layers.emplace_back(1'000'000 + random() % 9);
  const std::vector<int> layers = balanced_layers(times, 1'000);
  EXPECT_EQ(std::accumulate(layers.begin(), layers.end(), 0), 10'000);
  EXPECT_EQ(layers.back(), 1);  // the head takes as long as thirty layers
  EXPECT_GE(*std::min_element(layers.begin(), layers.end() - 1), 10);
}

TEST(Balance, RefusesListsThatDoNotDealAllLayers) {
  const auto refusal = [](const std::vector<int>& list, int layers, int chunks) {
    return error_text<UsageError>([&] { check_layers_per_chunk(list, layers, chunks); });
  };
  EXPECT_EQ(refusal({3, 5}, 8, 2), "(no error)");
  EXPECT_EQ(refusal({3, 5}, 8, 3), "the list of layers per chunk has 2 entries for 3 chunks.");
  EXPECT_EQ(refusal({3, 4}, 8, 2), "the list of layers per chunk has 7 layers; the model has 8.");
  EXPECT_EQ(refusal({8, 0}, 8, 2),
            "the list of layers per chunk gives chunk 1 0 layers; 1 is the least.");
  EXPECT_EQ(refusal({1, 1, 1}, 2, 3),
            "2 layers can't fill 3 chunks: each needs one; 2 chunks are the most.");
  EXPECT_EQ(error_text<UsageError>([] { balanced_layers(equal_layers(2, 0, 0), 3); }),
            "2 layers can't fill 3 chunks: each needs one; 2 chunks are the most.");
}

}  // namespace
}  // namespace sherd::schedule
