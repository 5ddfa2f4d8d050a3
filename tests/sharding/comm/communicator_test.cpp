#include "tests/sharding/comm/communicator_conformance.h"
#include "tests/sharding/comm/communicator_failures.h"

#include "sharding/comm/single.h"
#include "sharding/comm/threads.h"
#include "tests/sharding/comm/communicator_members.h"

namespace sherd::sharding {
namespace {

// Every rank is a thread of this process, with a worker stream.
CommunicatorKind in_one_process(std::string name, int world_size,
                                std::function<Communicators(std::chrono::milliseconds)> make) {
  const auto run = [make = std::move(make)](const GroupOptions& options,
                                            const std::function<void(Member&)>& body) {
    const Communicators communicators = make(options.timeout);
    run_members(communicators, options, body);
  };
  return {std::move(name), world_size, /*adds_in_rank_order=*/true, run};
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
