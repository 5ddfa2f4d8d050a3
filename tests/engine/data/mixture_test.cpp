#include "engine/data/mixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace sherd::data {
namespace {

std::vector<int> first_sources(const Mixture& mixture, std::int64_t count) {
  std::vector<int> sources;
  for (std::int64_t n = 0; n < count; ++n) sources.push_back(mixture.at(n).source);
  return sources;
}

// streaming's documentation has 0.25 and 0.75 of an epoch of 400 as 100 and 300.
TEST(Mixture, RoundsSharesToABlockOf1024ByLargestRemainder) {
  EXPECT_EQ(Mixture({0.25, 0.75}).counts(), (std::vector<std::int64_t>{256, 768}));
  // 716.8, 204.8 and 102.4: the two largest remainders get the two sequences that are left.
  EXPECT_EQ(Mixture({0.7, 0.2, 0.1}).counts(), (std::vector<std::int64_t>{717, 205, 102}));
  EXPECT_EQ(Mixture({7, 2, 1}).counts(), Mixture({0.7, 0.2, 0.1}).counts());
  EXPECT_EQ(Mixture({1, 1, 1}).counts(), (std::vector<std::int64_t>{342, 341, 341})) << "a tie";
  EXPECT_EQ(Mixture({3, 0, 1}).counts(), (std::vector<std::int64_t>{768, 0, 256}));
}

// The first 20 choices of the (n + 1) w rule for 0.5, 0.3, 0.2, worked out in another program.
TEST(Mixture, ChoosesTheSourceThatIsMostDue) {
  EXPECT_EQ(first_sources(Mixture({0.5, 0.3, 0.2}), 20),
            (std::vector<int>{0, 1, 2, 0, 0, 1, 0, 2, 1, 0, 0, 1, 2, 0, 0, 1, 0, 2, 1, 0}));
  // In floating point 2 x 0.7 - 1 is below 2 x 0.2, so a program with fractions chooses 1 second.
  // In whole numbers, 2 x 717 - 1024 and 2 x 205 are both 410: a tie.
  const std::vector<int> sources = first_sources(Mixture({0.7, 0.2, 0.1}), 20);
  EXPECT_EQ(sources[1], 0);
  for (const auto& [source, count] : {std::pair(0, 14), std::pair(1, 4), std::pair(2, 2)}) {
    EXPECT_EQ(std::count(sources.begin(), sources.end(), source), count);
  }
}

TEST(Mixture, OfOneSourceIsThatSource) {
  const Mixture mixture({0.3});
  for (const std::int64_t n : {0, 1, 1023, 1024, 123456}) {
    EXPECT_EQ(mixture.at(n).source, 0);
    EXPECT_EQ(mixture.at(n).number, n);
    EXPECT_EQ(mixture.count(0, n), n);
  }
}

TEST(Mixture, NumbersEachSourcesSequencesWithoutGapsFromAnyPlace) {
  const Mixture mixture({5, 3, 1, 0.5});
  std::vector<std::int64_t> next(4);
  for (std::int64_t n = 0; n < 3000; ++n) {
    for (int source = 0; source < 4; ++source) {
      EXPECT_EQ(mixture.count(source, n), next[static_cast<std::size_t>(source)]);
    }
    const Mixture::Place place = mixture.at(n);
    EXPECT_EQ(place.number, next[static_cast<std::size_t>(place.source)]++);
  }
}

TEST(Mixture, StaysNearTheSharesInEveryPrefix) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> weight(1e-3, 1.0);
  for (const std::size_t num_sources : {2, 3, 5, 8, 40}) {
    for (int trial = 0; trial < 20; ++trial) {
      std::vector<double> weights(num_sources);
      for (double& w : weights) w = weight(random);
      const Mixture mixture(weights);
      std::vector<std::int64_t> taken(num_sources);
      for (std::int64_t n = 1; n <= Mixture::kBlock; ++n) {
        ++taken[static_cast<std::size_t>(mixture.at(n - 1).source)];
        for (std::size_t i = 0; i < num_sources; ++i) {
          const std::int64_t due = n * mixture.counts()[i];
          EXPECT_LT(Mixture::kBlock * taken[i] - due, Mixture::kBlock);
          EXPECT_LT(due - Mixture::kBlock * taken[i],
                    Mixture::kBlock * std::max<std::int64_t>(1, std::ssize(weights) - 1));
        }
      }
      for (std::size_t i = 0; i < num_sources; ++i) EXPECT_EQ(taken[i], mixture.counts()[i]);
    }
  }
}

TEST(Mixture, SaysWhichSourceGetsNothingAndTheSmallestWeightThatWorks) {
  const Mixture mixture({1.0, 1e-5, 1e-6});
  EXPECT_EQ(mixture.without_sequences(), 1);
  const double works = mixture.smallest_weight(1);
  EXPECT_EQ(Mixture({1.0, works, 1e-6}).counts()[1], 1);
  EXPECT_EQ(Mixture({1.0, works * 0.98, 1e-6}).counts()[1], 0);
  EXPECT_EQ(Mixture({1.0, 0.0}).without_sequences(), -1) << "a weight of 0 asks for nothing";
}

}  // namespace
}  // namespace sherd::data
