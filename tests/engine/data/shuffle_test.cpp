#include "engine/data/shuffle.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

namespace sherd::data {
namespace {

std::vector<std::uint64_t> order_of(std::uint64_t n, std::uint64_t key) {
  const Permutation permutation(n, key);
  std::vector<std::uint64_t> order(n);
  for (std::uint64_t i = 0; i < n; ++i) order[i] = permutation(i);
  return order;
}

TEST(Permutation, IsABijectionForEveryCount) {
  std::vector<std::uint64_t> counts(300);
  std::iota(counts.begin(), counts.end(), 1);
  counts.insert(counts.end(), {1000, 4095, 4096, 4097, 65537, 100003});
  for (const std::uint64_t n : counts) {
    std::vector<bool> hit(n);
    for (const std::uint64_t place : order_of(n, 7 * n)) {
      ASSERT_LT(place, n);
      ASSERT_FALSE(hit[place]) << n << " things, " << place << " twice";
      hit[place] = true;
    }
  }
}

// A resumed run relies on the order of the version that saved it. Values from the algorithm
// written down once more in Python; mix(0) from splitmix64's reference generator with seed 0.
TEST(Permutation, KeepsItsOrderFromVersionToVersion) {
  EXPECT_EQ(mix(0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(order_of(12, 42), (std::vector<std::uint64_t>{10, 7, 3, 6, 11, 1, 8, 4, 2, 5, 9, 0}));
}

TEST(Permutation, AnotherKeyIsAnotherOrder) {
  std::set<std::vector<std::uint64_t>> orders;
  for (std::uint64_t key = 0; key < 100; ++key) orders.insert(order_of(50, key));
  EXPECT_EQ(orders.size(), 100u);
}

// Over 8,000 keys each of 8 x 8 (thing, place) pairs is expected 1,000 times, with a standard
// deviation of about 30.
TEST(Permutation, SendsEveryThingToEveryPlaceEquallyOften) {
  std::vector<int> count(64);
  for (std::uint64_t key = 0; key < 8000; ++key) {
    const auto order = order_of(8, key);
    for (std::uint64_t i = 0; i < 8; ++i) ++count[i * 8 + order[i]];
  }
  for (const int c : count) EXPECT_NEAR(c, 1000, 180);
}

TEST(Permutation, WorksForCountsBeyondMemory) {
  const std::uint64_t n = (std::uint64_t{1} << 40) + 3;
  const Permutation permutation(n, 1);
  std::set<std::uint64_t> places;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_LT(permutation(n - 1 - i), n);
    places.insert(permutation(n - 1 - i));
  }
  EXPECT_EQ(places.size(), 1000u);
}

}  // namespace
}  // namespace sherd::data
