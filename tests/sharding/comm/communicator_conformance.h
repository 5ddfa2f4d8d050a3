/// The suite that every kind of communicator passes. A new kind joins with one line:
///
///   INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorConformance, ::testing::Values(...), kind_name);
///
/// Include it, and communicator_failures.h, in one source per test program. Expected values come
/// from plain loops over ranks 0, 1, ..., W-1 in this file and are compared bit for bit. A kind
/// that adds in another order is given small integers, whose sums are exact in any order and type.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sharding/comm/communicator.h"
#include "tests/support/runs/training_harness.h"
#include "tests/support/values/tensors.h"

namespace sherd::sharding {

/// What one rank has in a test.
struct Member {
  Communicator& communicator;
  Stream& stream;
  std::function<std::unique_ptr<Stream>()> make_stream;  ///< a fresh one: errors stop a stream

  int rank() const { return communicator.rank(); }
  int world_size() const { return communicator.world_size(); }
  /// Waits for what was enqueued; throws what went wrong, which some kinds say only when asked.
  void finish(Stream& of) const {
    of.synchronize();
    communicator.check_alive();
  }
};

struct GroupOptions {
  std::chrono::milliseconds timeout{60'000};
  BoundaryHook hook;
};

struct CommunicatorKind {
  std::string name;
  int world_size = 1;
  bool adds_in_rank_order = true;  ///< and rounds once
  /// Runs the body on every rank of one new group; returns when all have ended.
  std::function<void(const GroupOptions&, const std::function<void(Member&)>&)> run;
  /// Ranks that are threads of this process; 0: all.
  int num_ranks_here = 0;
  bool has_trees = true;    ///< of 2^n ranks
  bool has_kernels = true;  ///< else only what needs no kernel of ours works
  /// Else calls that differ between ranks fail as they do in the underlying library.
  bool compares_calls = true;
  /// Calls with that many counters, zero at first, which all ranks of the next `run` share. None where
  /// ranks are threads of one process.
  using Counters = std::span<std::atomic<int>>;
  std::function<void(int count, const std::function<void(Counters)>&)> with_shared_counters{};

  int ranks_here() const { return num_ranks_here > 0 ? num_ranks_here : world_size; }
  void with_counters(int count, const std::function<void(Counters)>& call) const {
    if (with_shared_counters) return with_shared_counters(count, call);
    std::vector<std::atomic<int>> counters(static_cast<std::size_t>(count));
    call(counters);
  }
};

inline std::string kind_name(const ::testing::TestParamInfo<CommunicatorKind>& info) {
  return info.param.name + std::to_string(info.param.world_size);
}

class CommunicatorConformance : public ::testing::TestWithParam<CommunicatorKind> {
 protected:
  using Values = test::Values;
  static constexpr DType kSummed[] = {DType::kF32, DType::kBF16, DType::kF16};
  static constexpr std::int64_t kSliceCounts[] = {1, 5, 64, 1003};

  int world() const { return GetParam().world_size; }
  void run(const std::function<void(Member&)>& body) const { GetParam().run({}, body); }

  /// What rank `rank` brings: full [world * slice_count], rounded to `dtype`.
  Values contribution(int rank, std::int64_t numel, DType dtype, std::uint64_t seed = 1) const {
    Values values = test::random_values(numel, seed * 1000 + static_cast<std::uint64_t>(rank), 8.0);
    if (!GetParam().adds_in_rank_order || dtype == DType::kI32 || dtype == DType::kU8) {
      for (double& value : values) value = std::floor(std::abs(value));
    }
    return test::rounded(dtype, values);
  }

  /// ((v_0 + v_1) + v_2) + ..., in f32, rounded once.
  Values sum(std::int64_t numel, DType dtype, std::uint64_t seed = 1) const {
    Values total(static_cast<std::size_t>(numel));
    for (int rank = 0; rank < world(); ++rank) {
      const Values values = contribution(rank, numel, dtype, seed);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto value = static_cast<float>(values[i]);
        total[i] = rank == 0 ? value : static_cast<float>(total[i]) + value;
      }
    }
    return test::rounded(dtype, total);
  }

  /// Elements [rank * count, (rank + 1) * count).
  static Values part(const Values& full, int rank, std::int64_t count) {
    return {full.begin() + rank * count, full.begin() + (rank + 1) * count};
  }
  static void put(Values& full, int rank, const Values& slice) {
    std::copy(slice.begin(), slice.end(),
              full.begin() + rank * static_cast<std::ptrdiff_t>(slice.size()));
  }
  static ::testing::AssertionResult holds(const test::OwnedTensor& actual, const Values& expected) {
    return test::same_bits(actual, test::OwnedTensor(actual.tensor().dtype, expected));
  }

  /// One collective, chosen by `number`, on buffers of its own; `check` is for after the stream.
  std::function<void()> enqueue_some_collective(Member& member, int number) const;
  void many_in_a_row(const BoundaryHook& hook) const;
  void expect_disagreement(const std::function<void(Member&, Stream&)>& call,
                           const std::string& first, const std::string& last) const;
};

TEST_P(CommunicatorConformance, AllGatherCompletesEveryRanksBuffer) {
  run([&](Member& member) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32}) {
      for (const std::int64_t count : kSliceCounts) {
        Values mine(static_cast<std::size_t>(world() * count), 99.0), whole = mine;
        for (int r = 0; r < world(); ++r) put(whole, r, contribution(r, count, dtype));
        put(mine, member.rank(), contribution(member.rank(), count, dtype));
        const test::OwnedTensor full(dtype, mine);
        member.communicator.all_gather(member.stream, "x", full.tensor());
        member.stream.synchronize();
        EXPECT_TRUE(holds(full, whole)) << name_of(dtype) << " x " << count;
      }
    }
  });
}

TEST_P(CommunicatorConformance, ReduceScatterLeavesEachRankItsSliceOfTheSum) {
  run([&](Member& member) {
    for (const DType dtype : kSummed) {
      for (const std::int64_t count : kSliceCounts) {
        const Values mine = contribution(member.rank(), world() * count, dtype);
        const test::OwnedTensor full(dtype, mine);
        const test::OwnedTensor out(dtype, count);
        member.communicator.reduce_scatter(member.stream, "x", full.tensor(), out.tensor());
        member.stream.synchronize();
        EXPECT_TRUE(holds(out, part(sum(world() * count, dtype), member.rank(), count)));
        EXPECT_TRUE(holds(full, mine)) << "the input was changed";
      }
    }
  });
}

TEST_P(CommunicatorConformance, ReduceScatterIntoItsOwnSliceLeavesTheRestOfFullAlone) {
  run([&](Member& member) {
    for (const DType dtype : kSummed) {
      for (const std::int64_t count : kSliceCounts) {
        Values mine = contribution(member.rank(), world() * count, dtype);
        const test::OwnedTensor full(dtype, mine);
        member.communicator.reduce_scatter(member.stream, "x", full.tensor(),
                                           full.tensor().part(member.rank() * count, count));
        member.stream.synchronize();
        put(mine, member.rank(), part(sum(world() * count, dtype), member.rank(), count));
        EXPECT_TRUE(holds(full, mine)) << name_of(dtype) << " x " << count;
      }
    }
  });
}

// The chain of a step: calls continue where the last one stopped, some with a part of the ranks alone.
TEST_P(CommunicatorConformance, ReduceScatterGoesOnWithTheSumThatStandsThere) {
  if (!GetParam().adds_in_rank_order) GTEST_SKIP() << "this kind adds in an order of its own";
  constexpr std::int64_t kCount = 1003;
  run([&](Member& member) {
    for (const DType dtype : kSummed) {
      for (int first = 0; first < world(); ++first) {
        for (int num_ranks = 1; first + num_ranks <= world(); ++num_ranks) {
          const test::OwnedTensor out(DType::kF32, kCount);
          Values total;
          for (std::uint64_t call = 0; call < 3; ++call) {
            const bool all = call == 1;
            const Addends addends{call > 0, all ? 0 : first, all ? 0 : num_ranks};
            const test::OwnedTensor full(
                dtype, contribution(member.rank(), world() * kCount, dtype, call));
            member.communicator.reduce_scatter(member.stream, "x", full.tensor(), out.tensor(),
                                               addends);
            member.stream.synchronize();
            for (int r = 0; r < world(); ++r) {
              if (!all && (r < first || r >= first + num_ranks)) continue;
              const Values next =
                  part(contribution(r, world() * kCount, dtype, call), member.rank(), kCount);
              if (total.empty()) {
                total = next;
                continue;
              }
              for (std::size_t i = 0; i < next.size(); ++i) {
                total[i] = static_cast<float>(total[i]) + static_cast<float>(next[i]);
              }
            }
          }
          EXPECT_TRUE(holds(out, total))
              << name_of(dtype) << ", ranks " << first << " +" << num_ranks;
        }
      }
    }
  });
}

// What a kind with an order of its own promises, too: all ranks, added once. Small integers, so any order will do.
TEST_P(CommunicatorConformance, ReduceScatterAddsAllRanksToASumOfAnyType) {
  if (!GetParam().has_kernels) GTEST_SKIP() << "built without this device's kernels";
  run([&](Member& member) {
    Values mine(static_cast<std::size_t>(world() * 64), 1.0 + member.rank());
    for (const DType dtype : kSummed) {
      const test::OwnedTensor full(dtype, mine);
      const test::OwnedTensor out(DType::kF32, Values(64, 1000.0));
      member.communicator.reduce_scatter(member.stream, "x", full.tensor(), out.tensor(),
                                         {.onto_out = true});
      member.finish(member.stream);
      EXPECT_TRUE(holds(out, Values(64, 1000.0 + world() * (world() + 1) / 2.0)));
    }
    const test::OwnedTensor again(DType::kBF16, mine), fresh(DType::kF32, Values(64, 1000.0));
    member.communicator.reduce_scatter(member.stream, "x", again.tensor(), fresh.tensor());
    member.finish(member.stream);
    EXPECT_TRUE(holds(fresh, Values(64, world() * (world() + 1) / 2.0)));
  });
}

TEST_P(CommunicatorConformance, AllReduceGivesEveryRankTheWholeSum) {
  run([&](Member& member) {
    for (const DType dtype : kSummed) {
      for (const std::int64_t count : kSliceCounts) {
        const test::OwnedTensor full(dtype, contribution(member.rank(), world() * count, dtype));
        member.communicator.all_reduce(member.stream, "x", full.tensor());
        member.stream.synchronize();
        EXPECT_TRUE(holds(full, sum(world() * count, dtype))) << name_of(dtype) << " x " << count;
      }
    }
  });
}

TEST_P(CommunicatorConformance, AllToAllGivesEveryRankItsSliceOfAll) {
  run([&](Member& member) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32}) {
      for (const std::int64_t count : kSliceCounts) {
        const Values mine = contribution(member.rank(), world() * count, dtype);
        const test::OwnedTensor full(dtype, mine), out(dtype, world() * count);
        member.communicator.all_to_all(member.stream, "x", full.tensor(), out.tensor());
        member.stream.synchronize();
        Values expected(static_cast<std::size_t>(world() * count));
        for (int r = 0; r < world(); ++r) {
          put(expected, r, part(contribution(r, world() * count, dtype), member.rank(), count));
        }
        EXPECT_TRUE(holds(out, expected)) << name_of(dtype) << " x " << count;
        EXPECT_TRUE(holds(full, mine));
      }
    }
  });
}

// Rank a sends (a + 2 b) % 4 pieces of `count` to rank b, so some nothing, from the end of its buffer to the beginning.
TEST_P(CommunicatorConformance, AllToAllVGivesEveryRankTheRangesThatAreForIt) {
  constexpr int kMost = 3;
  const auto pieces = [](int from, int to) { return (from + 2 * to) % (kMost + 1); };
  run([&](Member& member) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI32}) {
      for (const std::int64_t count : {std::int64_t{1}, std::int64_t{37}}) {
        const std::int64_t room = world() * kMost * count;
        const auto first_for = [&](int from, int to) {
          std::int64_t before = 0;
          for (int rank = 0; rank <= to; ++rank) before += pieces(from, rank) * count;
          return room - before;
        };
        std::vector<ElementRange> sends, receives;
        Values expected(static_cast<std::size_t>(room), 99.0);
        std::int64_t at = 0;
        for (int peer = 0; peer < world(); ++peer) {
          sends.push_back({first_for(member.rank(), peer), pieces(member.rank(), peer) * count});
          receives.push_back({at, pieces(peer, member.rank()) * count});
          const std::int64_t expects = receives.back().count;
          const Values brought = contribution(peer, room, dtype);
          std::copy_n(brought.begin() + first_for(peer, member.rank()), expects, &expected[0] + at);
          at += expects;
        }
        const Values mine = contribution(member.rank(), room, dtype), empty(expected.size(), 99.0);
        const test::OwnedTensor from(dtype, mine), to(dtype, empty);
        member.communicator.all_to_all_v(member.stream, "x", from.tensor(), sends, to.tensor(),
                                         receives);
        member.stream.synchronize();
        EXPECT_TRUE(holds(to, expected)) << name_of(dtype) << " x " << count;
        EXPECT_TRUE(holds(from, mine)) << "the input was changed";
      }
    }
  });
}

TEST_P(CommunicatorConformance, BroadcastGivesEveryRankWhatTheRootHolds) {
  run([&](Member& member) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32}) {
      for (int root = 0; root < world(); ++root) {
        const std::int64_t numel = 7;  // need not divide by the world
        const test::OwnedTensor data(dtype, contribution(member.rank(), numel, dtype));
        member.communicator.broadcast(member.stream, "x", data.tensor(), root);
        member.stream.synchronize();
        EXPECT_TRUE(holds(data, contribution(root, numel, dtype))) << "root " << root;
      }
    }
  });
}

TEST_P(CommunicatorConformance, BarrierHoldsEveryRankUntilTheLastHasCome) {
  constexpr int kRounds = 20;
  GetParam().with_counters(kRounds, [&](CommunicatorKind::Counters come) {
    run([&](Member& member) {
      for (int round = 0; round < kRounds; ++round) {
        ++come[static_cast<std::size_t>(round)];
        member.communicator.barrier(member.stream, "x");
        member.stream.synchronize();
        EXPECT_EQ(come[static_cast<std::size_t>(round)], world());
      }
    });
  });
}

inline std::function<void()> CommunicatorConformance::enqueue_some_collective(Member& member,
                                                                              int number) const {
  const std::int64_t count = 1 + (number * 37) % 150;
  const DType dtype = kSummed[number % 3];
  const auto seed = static_cast<std::uint64_t>(number);
  const int rank = member.rank(), root = number % world();
  const Values mine = contribution(rank, world() * count, dtype, seed);
  const auto full = std::make_shared<test::OwnedTensor>(dtype, mine);
  const std::string label = "number " + std::to_string(number);
  Values expected = mine;
  switch (number % 6) {
    case 0:
      member.communicator.all_reduce(member.stream, label, full->tensor());
      expected = sum(world() * count, dtype, seed);
      break;
    case 1:
      member.communicator.reduce_scatter(member.stream, label, full->tensor(),
                                         full->tensor().part(rank * count, count));
      put(expected, rank, part(sum(world() * count, dtype, seed), rank, count));
      break;
    case 2:
      member.communicator.all_gather(member.stream, label, full->tensor());
      for (int r = 0; r < world(); ++r) {
        put(expected, r, part(contribution(r, world() * count, dtype, seed), r, count));
      }
      break;
    case 3:
      member.communicator.broadcast(member.stream, label, full->tensor(), root);
      expected = contribution(root, world() * count, dtype, seed);
      break;
    case 4:
      member.communicator.barrier(member.stream, label);
      break;
    default: {
      const auto out = std::make_shared<test::OwnedTensor>(dtype, world() * count);
      member.communicator.all_to_all(member.stream, label, full->tensor(), out->tensor());
      for (int r = 0; r < world(); ++r) {
        put(expected, r, part(contribution(r, world() * count, dtype, seed), rank, count));
      }
      return [=] {
        EXPECT_TRUE(holds(*out, expected)) << label;
        EXPECT_TRUE(holds(*full, mine)) << label;
      };
    }
  }
  return [=] { EXPECT_TRUE(holds(*full, expected)) << label; };
}

// Nothing waits in between: a collective must not touch the next one's buffers or meetings.
inline void CommunicatorConformance::many_in_a_row(const BoundaryHook& hook) const {
  GroupOptions options;
  options.hook = hook;
  GetParam().run(options, [&](Member& member) {
    std::vector<std::function<void()>> checks;
    for (int number = 0; number < 150; ++number) {
      checks.push_back(enqueue_some_collective(member, number));
    }
    member.stream.synchronize();
    for (const auto& check : checks) check();
  });
}

TEST_P(CommunicatorConformance, ManyCollectivesOfChangingSizesFollowOneAnother) {
  many_in_a_row(nullptr);
}

TEST_P(CommunicatorConformance, DelaysOnTheStreamsChangeNothing) {
  many_in_a_row(testing::delays(3));
}

}  // namespace sherd::sharding

#include "tests/sharding/comm/communicator_sums.h"
