// sharding/comm/nccl*.cpp as they are, over a fake NCCL (tests/fake_cuda/nccl.cpp says what it does).
#include "sharding/comm/nccl.h"

#include <atomic>
#include <mutex>
#include <numeric>
#include <random>

#include "sharding/comm/nccl_calls.h"
#include "tests/fake_cuda/nccl_processes.h"
#include "tests/fake_cuda/ranks.h"
#include "tests/sharding/comm/communicator_failures.h"

namespace sherd::sharding {
namespace {

using std::chrono::milliseconds;

std::vector<int> devices_of(int world_size) {
  std::vector<int> devices(static_cast<std::size_t>(world_size));
  std::iota(devices.begin(), devices.end(), 0);
  return devices;
}

CommunicatorKind nccl(int world_size, std::uint64_t seed) {
  const std::vector<int> devices = devices_of(world_size);
  CommunicatorKind kind =
      on_gpus("nccl", world_size, devices, /*adds_in_rank_order=*/false, seed,
              [devices](milliseconds timeout) { return make_nccl_rendezvous(devices, timeout); });
  kind.has_kernels = false;
  return kind;
}

std::vector<CommunicatorKind> kinds() {
  std::vector<CommunicatorKind> kinds = {nccl(1, 1)};
  for (std::uint64_t seed = 1; seed <= 4; ++seed) kinds.push_back(nccl(2, seed));
  for (const int world_size : {3, 4, 8}) kinds.push_back(nccl(world_size, 5));
  for (const auto& [count, seed] : {std::pair{2, 1}, {2, 2}, {3, 3}, {4, 4}}) {
    kinds.push_back(processes(count, static_cast<std::uint64_t>(seed)));
  }
  return kinds;
}
INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorConformance, ::testing::ValuesIn(kinds()), kind_name);

// What one rank of a world of two got, and whether the machine is as it was.
class Nccl : public ::testing::Test {
 protected:
  using Body = std::function<void(Member&)>;
  void run(const Body& body, milliseconds timeout = milliseconds(60'000)) {
    {
      const auto rendezvous = make_nccl_rendezvous({0, 1}, timeout);
      GroupOptions options;
      options.timeout = timeout;
      run_on_gpus(2, {0, 1}, *rendezvous, options, body);
    }
    EXPECT_EQ(fake_cuda::left_behind(), "");
  }
  static std::string error_of_all_reduce(Member& member) {
    const test::OwnedTensor full(DType::kF32, 64);
    std::string text = test::error_text<PeerError>([&] {
      member.communicator.all_reduce(member.stream, "block.7", full.tensor());
      member.finish(member.stream);
    });
    test::error_text<PeerError>([&] { member.stream.synchronize(); });  // the buffer goes
    return text;
  }
};

// The watch looks every 50 ms, so when the ranks leave it is nearly always asking.
TEST_F(Nccl, IsNotEndedWhileSomebodyAsksItForErrors) {
  fake_cuda::start({.num_devices = 2, .asking_takes_ms = 300});
  for (int time = 0; time < 3; ++time) {
    run([](Member&) { std::this_thread::sleep_for(milliseconds(100)); }, milliseconds(1000));
  }
}

TEST_F(Nccl, AnOlderNcclThatKeepsNoOrderIsRefusedForSeveralRanks) {
  fake_cuda::start({.num_devices = 2, .nccl_version = 22105});
  const std::string text = test::error_text<UsageError>([] { make_nccl_rendezvous({0, 1}); });
  EXPECT_TRUE(
      text.starts_with("2 ranks with a GPU each need NCCL 2.26 or newer, which keeps a rank's "
                       "communicators in order; NCCL 2.21.5 from "))
      << text;
  EXPECT_NO_THROW(make_nccl_rendezvous({0}));
  fake_cuda::start({.num_devices = 2, .nccl_version = 22600});
  EXPECT_NO_THROW(make_nccl_rendezvous({0, 1}));
}

// Prefetched gathers and reductions are on a GPU at once. With drivers before CUDA 12.3 a device has place for one of
// NCCL's kernels, so ranks that took them in different orders would wait for one another forever.
TEST_F(Nccl, TwoCommunicatorsOfARankKeepTheOrderOfItsCalls) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    fake_cuda::start(
        {.num_devices = 2, .seed = seed, .driver_version = seed % 2 == 0 ? 12020 : 13000});
    {
      const auto rendezvous = make_nccl_rendezvous({0, 1}, milliseconds(5'000));
      run_on_gpus(2, {0, 1}, *rendezvous, {}, [&](Member& member) {
        const auto gathers = rendezvous->join(whole_group(2, member.rank(), Purpose::kGather));
        const auto stream = member.make_stream();
        const test::OwnedTensor x(DType::kF32, test::Values(64, 1.0)), y(DType::kF32, 64);
        for (int i = 0; i < 8; ++i) {
          member.communicator.all_reduce(member.stream, "x", x.tensor());
          gathers->all_gather(*stream, "y", y.tensor());
        }
        stream->synchronize();
        member.finish(member.stream);
        EXPECT_EQ(x.values(), test::Values(64, 256.0));
      });
    }
    EXPECT_EQ(fake_cuda::races(), std::vector<std::string>());
    EXPECT_EQ(fake_cuda::left_behind(), "");
  }
}

// As the ranks of a pipeline talk: a communicator for each direction, and each rank sends and receives in an order
// of its own. A receive that waits holds up none of the sends that are called after it.
TEST_F(Nccl, MessagesGoBothWaysWhateverTheOrderOfEachRanksCalls) {
  constexpr int kMessages = 12, kCount = 64;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    fake_cuda::start({.num_devices = 2, .seed = seed});
    {
      const auto rendezvous = make_nccl_rendezvous({0, 1}, milliseconds(5'000));
      run_on_gpus(2, {0, 1}, *rendezvous, {}, [&](Member& member) {
        const int rank = member.rank();
        const auto there = rendezvous->join({"there", {0, 1}, rank});
        const auto back = rendezvous->join({"back", {0, 1}, rank});
        Communicator& out = rank == 0 ? *there : *back;
        Communicator& in = rank == 0 ? *back : *there;
        const auto sends = member.make_stream(), receives = member.make_stream();
        const auto written = member.stream.make_event(), left = member.stream.make_event();
        const auto read = member.stream.make_event(), arrived = member.stream.make_event();
        const test::OwnedTensor outbox(DType::kF32, kCount), inbox(DType::kF32, kCount);
        const auto value = [](int of_rank, int message) {
          return static_cast<float>(100 * of_rank + message);
        };
        std::vector<float> got;
        std::mt19937_64 random(seed * 2 + static_cast<std::uint64_t>(rank));
        for (int sent = 0, received = 0; sent < kMessages || received < kMessages;) {
          // Rank 0 is a message ahead, or two; rank 1 answers, or comes before.
          const int lead = sent - received, ahead = 1 - rank;
          const bool may_send = sent < kMessages && lead <= ahead;
          const bool may_receive = received < kMessages && lead >= ahead;
          if (may_send && (!may_receive || random() % 2 == 0)) {
            member.stream.wait(*left);
            member.stream.run("write", [&, sent] {
              std::fill_n(outbox.tensor().as<float>(), kCount, value(rank, sent));
            });
            member.stream.record(*written);
            sends->wait(*written);
            out.broadcast(*sends, "message", outbox.tensor(), rank);
            sends->record(*left);
            ++sent;
          } else {
            receives->wait(*read);
            in.broadcast(*receives, "message", inbox.tensor(), 1 - rank);
            receives->record(*arrived);
            member.stream.wait(*arrived);
            member.stream.run("read",
                              [&] { got.push_back(inbox.tensor().as<float>()[kCount - 1]); });
            member.stream.record(*read);
            ++received;
          }
        }
        for (Stream* stream : {sends.get(), receives.get()}) stream->synchronize();
        member.finish(member.stream);
        for (int message = 0; message < kMessages; ++message) {
          EXPECT_EQ(got[static_cast<std::size_t>(message)], value(1 - rank, message))
              << "seed " << seed;
        }
      });
    }
    EXPECT_EQ(fake_cuda::races(), std::vector<std::string>());
    EXPECT_EQ(fake_cuda::left_behind(), "");
  }
}

TEST_F(Nccl, ACallOnlyEnqueuesEvenTheFirst) {
  fake_cuda::start({.num_devices = 2});
  std::latch called(1);
  run(
      [&](Member& member) {
        const test::OwnedTensor full(DType::kF32, 64);
        if (member.rank() == 1) called.wait();
        const std::string text = test::error_text<PeerError>(
            [&] { member.communicator.all_reduce(member.stream, "x", full.tensor()); });
        if (member.rank() == 0) called.count_down();
        EXPECT_EQ(text, "(no error)");
        member.stream.synchronize();
      },
      milliseconds(2'000));
}

TEST_F(Nccl, ARankThatDoesntComeToJoinIsNamed) {
  fake_cuda::start({.num_devices = 2});
  const auto rendezvous = make_nccl_rendezvous({0, 1}, milliseconds(100));
  use_cuda_device(0);
  EXPECT_EQ(test::error_text<PeerError>([&] { rendezvous->join(whole_group(2, 0)); }),
            "rank 0 waited 0.1 s for rank 1 in connecting of reduce, shard, from rank 0. Read rank "
            "1's log first.");
}

TEST_F(Nccl, AConnectionThatIsNeverMadeIsGivenUp) {
  fake_cuda::start({.num_devices = 2, .connecting_hangs = true});
  {
    const auto rendezvous = make_nccl_rendezvous({0, 1}, milliseconds(100));
    std::vector<std::thread> ranks;
    for (const int rank : {0, 1}) {
      ranks.emplace_back([&, rank] {
        EXPECT_TRUE(test::error_text<PeerError>([&] { rendezvous->join(whole_group(2, rank)); })
                        .ends_with("waited 0.1 s for NCCL to connect reduce, shard, from rank 0. "
                                   "NCCL_DEBUG=INFO says what it tries."));
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  // Each rank that was left waiting ends what it has made, once both have come so far.
  while (fake_cuda::left_behind() != "2 communicators") std::this_thread::yield();
  fake_cuda::let_connect();
  while (!fake_cuda::left_behind().empty()) std::this_thread::yield();
}

// NCCL_RUNTIME_CONNECT=1 is a user's to set: then a first call hangs on the host.
TEST_F(Nccl, ACallThatHangsOnTheHostIsEndedByTheAbort) {
  setenv("NCCL_RUNTIME_CONNECT", "1", 1);
  fake_cuda::start({.num_devices = 2});
  run(
      [&](Member& member) {
        if (member.rank() == 1) return;
        EXPECT_EQ(
            error_of_all_reduce(member),
            "rank 0 waited 0.1 s for rank 1 in all_reduce of block.7. Read rank 1's log first.");
      },
      milliseconds(100));
  unsetenv("NCCL_RUNTIME_CONNECT");
}

TEST_F(Nccl, ALongQueueBeforeACollectiveIsNoWaiting) {
  fake_cuda::start({});
  use_cuda_device(0);
  {
    const auto stream = make_cuda_stream({}, {}), other = make_cuda_stream({}, {});
    NcclCalls calls({0, 1}, milliseconds(10));
    bool queue_is_over = false, peer_has_come = false;
    fake_cuda::launch(stream->handle(), {"queue", [] {}, {}, [&] { return queue_is_over; }});
    calls.begin(0, {"all_reduce", "x"}, stream->handle());
    fake_cuda::launch(stream->handle(), {"kernel", [] {}, {}, [&] { return peer_has_come; }});
    calls.end(0, stream->handle());
    for (int i = 0; i < 5; ++i) {
      EXPECT_FALSE(calls.overdue());
      std::this_thread::sleep_for(milliseconds(10));
    }
    queue_is_over = true;
    std::string text;
    while (text.empty()) {  // other work lets the device continue
      other->run("work", [] {});
      other->synchronize();
      if (const auto overdue = calls.overdue()) text = calls.text_of(*overdue);
    }
    EXPECT_EQ(text, "rank 0 waited 0.01 s for rank 1 in all_reduce of x. Read rank 1's log first.");
    peer_has_come = true;
    stream->synchronize();
    EXPECT_FALSE(calls.overdue());
  }
  EXPECT_EQ(fake_cuda::left_behind(), "");
}

TEST_F(Nccl, WhatNcclFindsOutByItselfStopsAllRanks) {
  fake_cuda::start({.num_devices = 2});
  run([&](Member& member) {
    member.communicator.barrier(member.stream, "x");
    member.finish(member.stream);
    if (member.rank() == 1) return fake_cuda::break_connection(1);
    const std::string text = error_of_all_reduce(member);  // rank 1 never comes to it
    EXPECT_NE(text.find("rank 1: a collective of reduce, shard, from rank 0 failed: remote process "
                        "exited or there was a network error"),
              std::string::npos)
        << text;
  });
}

TEST(NcclProcesses, GroupsOfSomeProcessesHaveIdsOfTheirOwn) {
  fake_cuda::start({.num_devices = 4});
  {
    NcclWorld world(4, kToConnect);
    world.run({}, [&](Member& member) {
      const int rank = member.rank(), first = rank / 2 * 2;
      const Group pair{.name = "pair from " + std::to_string(first),
                       .ranks = {first, first + 1},
                       .index = rank % 2};
      const auto communicator = world.rendezvous(rank).join(pair);
      const test::OwnedTensor x(DType::kF32, test::Values(64, rank + 1.0));
      communicator->all_reduce(member.stream, "x", x.tensor());
      member.finish(member.stream);
      EXPECT_EQ(x.values(), test::Values(64, rank < 2 ? 3.0 : 7.0));
    });
  }
  EXPECT_EQ(fake_cuda::left_behind(), "");
}

TEST(NcclProcesses, WhoeverDoesntComeToJoinIsNamed) {
  fake_cuda::start({.num_devices = 2});
  NcclWorld world(2, milliseconds(100));
  use_cuda_device(1);
  EXPECT_EQ(test::error_text<PeerError>([&] { world.rendezvous(1).join(whole_group(2, 1)); }),
            "rank 1 waited 0.1 s for rank 0 in connecting of reduce, shard, from rank 0. Read rank "
            "0's log first.");
}

// Both that wait ask, and answer one another meanwhile.
TEST(NcclProcesses, OnlyTheOneThatStaysAwayIsNamed) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    fake_cuda::start({.num_devices = 3, .seed = seed});
    NcclWorld world(3, milliseconds(300));
    std::mutex mutex;
    std::vector<std::string> told;
    world.run({}, [&](Member& member) {
      const test::OwnedTensor x(DType::kF32, test::Values(63, 1.0));
      const std::string text = test::error_text<PeerError>([&] {
        while (member.rank() == 2) member.communicator.check_alive();
        member.communicator.all_reduce(member.stream, "x", x.tensor());
        member.finish(member.stream);
      });
      test::error_text<PeerError>([&] { member.stream.synchronize(); });
      std::lock_guard lock(mutex);
      told.push_back(text);
    });
    for (const std::string& text : told) {
      EXPECT_TRUE(::testing::internal::RE::FullMatch(
          text, "rank [01] waited 0.3 s for rank 2 in all_reduce of x. Read rank 2's log first."))
          << text;
    }
  }
}

TEST(NcclProcesses, ADeathIsHeardByAllRanksThatWait) {
  fake_cuda::start({.num_devices = 3});
  {
    NcclWorld world(3, milliseconds(4'000));
    for (int process = 0; process < 3; ++process) {
      world.links(process).set_names({"rank 0 on a", "rank 1 on b", "rank 2 on c"});
    }
    world.run({}, [&](Member& member) {
      const test::OwnedTensor x(DType::kF32, test::Values(63, 1.0));
      if (member.rank() == 2) return world.links(2).abort("rank 2 on c: its GPU has failed.");
      EXPECT_EQ(test::error_text<PeerError>([&] {
                  member.communicator.all_reduce(member.stream, "x", x.tensor());
                  member.finish(member.stream);
                }),
                "rank 2 on c: its GPU has failed.");
      test::error_text<PeerError>([&] { member.stream.synchronize(); });
    });
  }
  EXPECT_EQ(fake_cuda::left_behind(), "");
}

// Another member may still have work, or fail: a communicator whose end has begun couldn't be aborted any more.
TEST(NcclProcesses, AMemberThatLeavesWaitsForTheOthers) {
  for (const int last : {0, 1, 2}) {
    fake_cuda::start({.num_devices = 3});
    {
      NcclWorld world(3, kToConnect);
      std::atomic<int> left = 0;
      world.run({}, [&](Member& member) {
        const int rank = member.rank();
        auto communicator = world.rendezvous(rank).join(whole_group(3, rank, Purpose::kGather));
        if (rank == last) {
          std::this_thread::sleep_for(milliseconds(200));
          EXPECT_EQ(left, 0);
          EXPECT_EQ(fake_cuda::communicators_ending(), 0) << "an abort couldn't end these any more";
        }
        communicator.reset();
        ++left;
      });
      EXPECT_EQ(left, 3);
    }
    EXPECT_EQ(fake_cuda::left_behind(), "");
  }
}

// Within the moments that news take, not when their own patience is over.
TEST(NcclProcesses, AnAbortInAProcessReachesTheOthers) {
  fake_cuda::start({.num_devices = 2});
  {
    NcclWorld world(2, milliseconds(4'000));
    world.run({}, [&](Member& member) {
      if (member.rank() == 1) return member.communicator.abort("rank 1 stopped: disk full");
      const test::OwnedTensor x(DType::kF32, test::Values(64, 1.0));
      EXPECT_EQ(test::error_text<PeerError>([&] {
                  member.communicator.all_reduce(member.stream, "x", x.tensor());
                  member.finish(member.stream);
                }),
                "rank 1 stopped: disk full");
      test::error_text<PeerError>([&] { member.stream.synchronize(); });
    });
  }
  EXPECT_EQ(fake_cuda::left_behind(), "");
}

}  // namespace
}  // namespace sherd::sharding
