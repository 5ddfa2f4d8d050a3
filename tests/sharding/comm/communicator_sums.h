/// The order in which communicators add, and how often they round: a part of communicator_conformance.h.
#pragma once

#include <bit>

#include "tests/sharding/comm/communicator_conformance.h"

namespace sherd::sharding {

// Elements where the order of additions decides the result: 1e8 + 1 - 1e8 is 0 in f32, any order
// that adds the large ones first gives 1.
TEST_P(CommunicatorConformance, SumsAreTakenInRankOrder) {
  if (!GetParam().adds_in_rank_order) GTEST_SKIP() << "this kind adds in an order of its own";
  constexpr float kPattern[] = {1e8f, 1.0f, -1e8f};
  const std::int64_t numel = 12 * world();
  const auto value = [&](int rank, std::int64_t i) { return kPattern[(rank + i) % 3]; };
  run([&](Member& member) {
    Values mine, expected;
    for (std::int64_t i = 0; i < numel; ++i) {
      mine.push_back(value(member.rank(), i));
      float total = value(0, i);
      for (int r = 1; r < world(); ++r) total += value(r, i);
      expected.push_back(total);
    }
    if (world() == 3) {
      EXPECT_EQ(expected[0], 0.0);
    }
    const test::OwnedTensor all(DType::kF32, mine), scattered(DType::kF32, mine);
    member.communicator.all_reduce(member.stream, "all", all.tensor());
    member.communicator.reduce_scatter(member.stream, "scattered", scattered.tensor(),
                                       scattered.tensor().part(member.rank() * 12, 12));
    member.stream.synchronize();
    EXPECT_TRUE(holds(all, expected));
    put(mine, member.rank(), part(expected, member.rank(), 12));
    EXPECT_TRUE(holds(scattered, mine));
  });
}

// ((1e8 + 1) - 1e8) + 1 is 1 in f32, and (1e8 + 1) + (-1e8 + 1) is 0.
TEST_P(CommunicatorConformance, SumsAreTreesIfAskedFor) {
  if (!GetParam().has_trees) GTEST_SKIP() << "sums as trees are the CPU's";
  if (!std::has_single_bit(static_cast<unsigned>(world()))) GTEST_SKIP() << "not 2^n ranks";
  constexpr float kPattern[] = {1e8f, 1.0f, -1e8f, 1.0f};
  const std::int64_t numel = 12 * world();
  const auto value = [&](int rank, std::int64_t i) { return kPattern[(rank + i) % 4]; };
  run([&](Member& member) {
    Values mine, expected;
    for (std::int64_t i = 0; i < numel; ++i) {
      mine.push_back(value(member.rank(), i));
      std::vector<float> sums;
      for (int r = 0; r < world(); ++r) sums.push_back(value(r, i));
      for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
        for (std::size_t k = 0; k < sums.size() / 2; ++k) sums[k] = sums[2 * k] + sums[2 * k + 1];
      }
      expected.push_back(sums[0]);
    }
    if (world() == 4) {
      EXPECT_EQ(expected[0], 0.0);
    }
    const test::OwnedTensor full(DType::kF32, mine);
    member.communicator.all_reduce(member.stream, "x", full.tensor(), world());
    member.stream.synchronize();
    EXPECT_TRUE(holds(full, expected));
  });
}

// Pairs first: onto 1, (1 + 1e8) + (-1e8 + 1) is 0 in f32 and one after the other 1; the second call continues.
TEST_P(CommunicatorConformance, NeighboursAreAddedAsTreesWithinTheChain) {
  if (!GetParam().has_trees) GTEST_SKIP() << "sums as trees are the CPU's";
  if (world() % 2 != 0) GTEST_SKIP() << "not in pairs";
  constexpr float kPattern[] = {1.0f, 1e8f, -1e8f, 1.0f};
  const auto value = [&](int rank, std::int64_t i) {
    return kPattern[static_cast<std::size_t>(rank + i) % 4];
  };
  run([&](Member& member) {
    Values mine, begin;
    for (std::int64_t i = 0; i < 12 * world(); ++i) mine.push_back(value(member.rank(), i));
    Values expected;
    for (std::int64_t i = 12 * member.rank(); i < 12 * (member.rank() + 1); ++i) {
      begin.push_back(0.25);
      float total = 0.25f;
      for (int call = 0; call < 2; ++call) {
        for (int r = 0; r < world(); r += 2) total += value(r, i) + value(r + 1, i);
      }
      expected.push_back(total);
    }
    const test::OwnedTensor full(DType::kF32, mine), out(DType::kF32, begin);
    for (int call = 0; call < 2; ++call) {
      member.communicator.reduce_scatter(member.stream, "x", full.tensor(), out.tensor(),
                                         {.onto_out = true, .tree = 2});
    }
    member.stream.synchronize();
    EXPECT_TRUE(holds(out, expected));
  });
}

// 256 + 1 is 256 in bf16 (neighbours lie 2 apart): rounding after every addition would lose all
// ones.
TEST_P(CommunicatorConformance, SumsOfBF16AreRoundedOnce) {
  if (!GetParam().adds_in_rank_order) GTEST_SKIP() << "this kind rounds after every addition";
  run([&](Member& member) {
    const test::OwnedTensor full(
        DType::kBF16, Values(static_cast<std::size_t>(world()), member.rank() == 0 ? 256.0 : 1.0));
    member.communicator.all_reduce(member.stream, "x", full.tensor());
    member.stream.synchronize();
    const double expected = test::rounded(DType::kBF16, 256.0 + (world() - 1));
    EXPECT_TRUE(holds(full, Values(static_cast<std::size_t>(world()), expected)));
  });
}

}  // namespace sherd::sharding
