#include "tests/sharding/comm/communicator_conformance.h"
#include "tests/sharding/comm/communicator_failures.h"

#include <thread>

#include "sharding/comm/single.h"
#include "sharding/comm/threads.h"
#include "sharding/mesh/process_groups.h"

namespace sherd::sharding {
namespace {

using Communicators = std::vector<std::unique_ptr<Communicator>>;

void run_member(Communicator& communicator, const GroupOptions& options,
                const std::function<void(Member&)>& body) {
  const auto make_stream = [&] {
    StreamOptions stream;
    stream.name = "collectives";
    stream.rank = communicator.rank();
    stream.hook = options.hook;
    return make_cpu_worker_stream(std::move(stream));
  };
  const auto stream = make_stream();
  Member member{communicator, *stream, make_stream};
  try {
    body(member);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << communicator.rank() << ": " << error.what();
    communicator.abort(error.what());
  }
}

// Every rank is a thread of this process, with a worker stream.
CommunicatorKind in_one_process(std::string name, int world_size,
                                std::function<Communicators(std::chrono::milliseconds)> make) {
  const auto run = [make = std::move(make)](const GroupOptions& options,
                                            const std::function<void(Member&)>& body) {
    const Communicators communicators = make(options.timeout);
    std::vector<std::thread> threads;
    for (const auto& communicator : communicators) {
      threads.emplace_back([&] { run_member(*communicator, options, body); });
    }
    for (std::thread& thread : threads) thread.join();
  };
  return {std::move(name), world_size, /*adds_in_rank_order=*/true, run};
}

// What the ranks of a world get that join it one after another.
Communicators joined(Rendezvous& rendezvous, int world_size) {
  Communicators communicators;
  for (int rank = 0; rank < world_size; ++rank) {
    communicators.push_back(
        rendezvous.join(group_of(Mesh::sharded(world_size), rank, zero_axes(), Purpose::kGather)));
  }
  return communicators;
}

CommunicatorKind single() {
  return in_one_process("single", 1, [](auto) { return joined(*make_single_rendezvous(), 1); });
}

CommunicatorKind threads(int world_size) {
  return in_one_process("threads", world_size, [world_size](std::chrono::milliseconds timeout) {
    return joined(*make_thread_rendezvous(timeout), world_size);
  });
}

INSTANTIATE_TEST_SUITE_P(Single, CommunicatorConformance, ::testing::Values(single()), kind_name);
INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorConformance,
                         ::testing::Values(threads(1), threads(2), threads(3), threads(4),
                                           threads(6)),
                         kind_name);

TEST(CommunicatorDeathTest, CountsThatDontDivideByTheWorldAreOurBug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto group = joined(*make_thread_rendezvous(), 2);
  const auto stream = test::compute_stream();
  const test::OwnedTensor full(DType::kF32, 5);
  EXPECT_DEATH(group[0]->all_gather(*stream, "block.7", full.tensor()),
               "block.7: 5 elements on 2 ranks");
  const test::OwnedTensor even(DType::kF32, 4);
  EXPECT_DEATH(group[0]->reduce_scatter(*stream, "block.7", even.tensor(), even.tensor()),
               "reduce_scatter of block.7: 4 elements into 4");
}

TEST(CommunicatorDeathTest, ARootOutsideTheWorldIsOurBug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto group = joined(*make_thread_rendezvous(), 2);
  const auto stream = test::compute_stream();
  const test::OwnedTensor data(DType::kF32, 4);
  EXPECT_DEATH(group[0]->broadcast(*stream, "x", data.tensor(), 2), "broadcast from rank 2");
}

}  // namespace
}  // namespace sherd::sharding
