/// The conformance suite's second half: ranks that stop, don't come, or call something else.
#pragma once

#include <latch>

#include "core/error.h"
#include "tests/sharding/comm/communicator_conformance.h"
#include "tests/support/values/error_text.h"

namespace sherd::sharding {

TEST_P(CommunicatorConformance, AnAbortReachesEveryRankWithItsReasonAndTheFirstReasonStays) {
  for (int round = 0; round < 10; ++round) {
    std::latch started(GetParam().ranks_here());
    run([&](Member& member) {
      const test::OwnedTensor full(DType::kF32, Values(static_cast<std::size_t>(world() * 4), 1.0));
      const auto collective = [&](Stream& stream) {
        member.communicator.all_reduce(stream, "x", full.tensor());
        member.finish(stream);
      };
      if (member.rank() == 0) {
        started.arrive_and_wait();  // the others here are about to wait, or do so already
        member.communicator.abort("rank 0 stopped: disk full");
        member.communicator.abort("something later");
      } else {
        started.count_down();
        EXPECT_EQ(test::error_text<PeerError>([&] { collective(member.stream); }),
                  "rank 0 stopped: disk full");
      }
      for (int later = 0; later < 2; ++later) {
        const auto stream = member.make_stream();
        EXPECT_EQ(test::error_text<PeerError>([&] { collective(*stream); }),
                  "rank 0 stopped: disk full");
      }
    });
  }
}

// Ranks are at every point of a collective when the abort comes; none may leave it before the
// others, who read its memory and wait for it.
TEST_P(CommunicatorConformance, AnAbortInTheMiddleOfCollectivesLeavesNobodyBehind) {
  for (int round = 0; round < 40; ++round) {
    run([&](Member& member) {
      const test::OwnedTensor full(DType::kF32,
                                   Values(static_cast<std::size_t>(world() * 500), 0.0));
      const auto collectives = [&] {
        for (int number = 0;; ++number) {
          member.communicator.all_reduce(member.stream, "x", full.tensor());
          if (member.rank() == 0 && number == round) member.communicator.abort("enough");
          if (number % 8 == 0) member.stream.synchronize();
        }
      };
      EXPECT_EQ(test::error_text<PeerError>(collectives), "enough");
      test::error_text<PeerError>([&] { member.stream.synchronize(); });  // the buffer goes
    });
  }
}

TEST_P(CommunicatorConformance, ARankThatDoesntComeIsNamedAfterTheTimeout) {
  if (world() == 1) GTEST_SKIP() << "nobody to wait for";
  const int absent = world() - 1;
  GroupOptions options;
  options.timeout = std::chrono::milliseconds(200);
  GetParam().run(options, [&](Member& member) {
    if (member.rank() == absent) return;
    const test::OwnedTensor full(DType::kF32, Values(static_cast<std::size_t>(world()), 1.0));
    const std::string message = test::error_text<PeerError>([&] {
      member.communicator.all_gather(member.stream, "block.7", full.tensor());
      member.finish(member.stream);
    });
    // On a busy machine a rank that did come may have been late too.
    const std::string pattern = fmt::format(
        "rank [0-9]+ waited 0.2 s for (rank [0-9]+, )*rank {} in all_gather of block.7. "
        "Read rank [0-9]+'s log first.",
        absent);
    EXPECT_TRUE(::testing::internal::RE::FullMatch(message, pattern)) << message;
  });
}

/// The last rank calls something else than the others: every rank's error names both calls.
inline void CommunicatorConformance::expect_disagreement(
    const std::function<void(Member&, Stream&)>& call, const std::string& first,
    const std::string& last) const {
  run([&](Member& member) {
    const std::string message = test::error_text<PeerError>([&] {
      call(member, member.stream);
      member.finish(member.stream);
    });
    EXPECT_NE(message.find(fmt::format("rank 0 called {} while rank {} called {}", first,
                                       world() - 1, last)),
              std::string::npos)
        << message;
  });
}

TEST_P(CommunicatorConformance, RanksThatCallDifferentThingsAreToldBoth) {
  if (world() == 1) GTEST_SKIP() << "nobody to disagree with";
  if (!GetParam().compares_calls) GTEST_SKIP() << "nobody compares";
  const test::OwnedTensor memory(DType::kF32, Values(static_cast<std::size_t>(world() * 8), 1.0));
  std::vector<test::OwnedTensor> buffers(static_cast<std::size_t>(world()), memory);
  const auto full = [&](const Member& member, std::int64_t count) {
    return buffers[static_cast<std::size_t>(member.rank())].tensor().part(0, count);
  };
  const auto is_last = [&](const Member& member) { return member.rank() == world() - 1; };
  const int n = world() * 8;
  expect_disagreement(
      [&](Member& member, Stream& stream) {
        if (is_last(member)) return member.communicator.all_reduce(stream, "x", full(member, n));
        member.communicator.all_gather(stream, "x", full(member, n));
      },
      fmt::format("all_gather of x ({} f32)", n), fmt::format("all_reduce of x ({} f32)", n));
  expect_disagreement(
      [&](Member& member, Stream& stream) {
        member.communicator.all_gather(stream, "x", full(member, is_last(member) ? n / 2 : n));
      },
      fmt::format("all_gather of x ({} f32)", n), fmt::format("all_gather of x ({} f32)", n / 2));
  expect_disagreement(
      [&](Member& member, Stream& stream) {
        member.communicator.all_reduce(stream, is_last(member) ? "y" : "x", full(member, n));
      },
      fmt::format("all_reduce of x ({} f32)", n), fmt::format("all_reduce of y ({} f32)", n));
  expect_disagreement(
      [&](Member& member, Stream& stream) {
        member.communicator.broadcast(stream, "x", full(member, n), is_last(member) ? 1 : 0);
      },
      fmt::format("broadcast of x ({} f32) from rank 0", n),
      fmt::format("broadcast of x ({} f32) from rank 1", n));
}

}  // namespace sherd::sharding
