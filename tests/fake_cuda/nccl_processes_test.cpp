// Processes with a GPU each (sharding/processes/gpus_of_processes.h), over the fake NCCL: threads that are
// processes to one another, each with connections and communicators of its own.
#include "sharding/processes/gpus_of_processes.h"

#include <future>
#include <numeric>

#include "tests/fake_cuda/ranks.h"
#include "tests/sharding/comm/communicator_failures.h"

namespace sherd::sharding {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kPatience{20'000};

/// The world of so many processes; process p has device p.
class World {
 public:
  World(int count, milliseconds timeout) {
    std::promise<std::string> promise;
    const std::shared_future<std::string> address = promise.get_future().share();
    links_.resize(static_cast<std::size_t>(count));
    std::vector<std::thread> threads;
    for (int process = 0; process < count; ++process) {
      threads.emplace_back([&, process] {
        const ControlLinks::Options options{process, count, kPatience};
        links_[static_cast<std::size_t>(process)] =
            process > 0 ? ControlLinks::connect(options, address.get())
                        : ControlLinks::listen(options, true,
                                               [&](const auto& text) { promise.set_value(text); });
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int process = 0; process < count; ++process) {
      rendezvous_.push_back(make_nccl_rendezvous(links(process), process, timeout));
    }
  }
  ~World() {
    rendezvous_.clear();
    for (const auto& links : links_) links->part();
  }

  ControlLinks& links(int process) { return *links_[static_cast<std::size_t>(process)]; }
  Rendezvous& rendezvous(int process) { return *rendezvous_[static_cast<std::size_t>(process)]; }

  void run(const GroupOptions& options, const std::function<void(Member&)>& body) {
    std::vector<int> devices(links_.size());
    std::iota(devices.begin(), devices.end(), 0);
    run_on_gpus(
        static_cast<int>(links_.size()), devices,
        [this](int rank) -> Rendezvous& { return rendezvous(rank); }, options, body);
  }

 private:
  std::vector<std::unique_ptr<ControlLinks>> links_;
  std::vector<std::shared_ptr<Rendezvous>> rendezvous_;
};

CommunicatorKind processes(int count, std::uint64_t seed) {
  const auto run = [=](const GroupOptions& options, const std::function<void(Member&)>& body) {
    fake_cuda::start({.num_devices = count, .seed = seed});
    World(count, options.timeout).run(options, body);
    EXPECT_EQ(fake_cuda::left_behind(), "");
    EXPECT_EQ(fake_cuda::races(), std::vector<std::string>());
  };
  return {.name = "ncclProcessesSeed" + std::to_string(seed) + "World",
          .world_size = count,
          .adds_in_rank_order = false,
          .run = run,
          .has_trees = false,
          .has_kernels = false,
          .compares_calls = false};
}

std::vector<CommunicatorKind> kinds() {
  return {processes(2, 1), processes(2, 2), processes(3, 3), processes(4, 4)};
}
INSTANTIATE_TEST_SUITE_P(NcclProcesses, CommunicatorConformance, ::testing::ValuesIn(kinds()),
                         kind_name);

TEST(NcclProcesses, GroupsOfSomeProcessesHaveIdsOfTheirOwn) {
  fake_cuda::start({.num_devices = 4});
  {
    World world(4, kPatience);
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
  World world(2, milliseconds(100));
  use_cuda_device(1);
  EXPECT_EQ(test::error_text<PeerError>([&] { world.rendezvous(1).join(whole_group(2, 1)); }),
            "rank 1 waited 0.1 s for rank 0 in connecting of reduce, shard, from rank 0. Read rank "
            "0's log first.");
}

TEST(NcclProcesses, WhoeverWaitsInAnotherGroupIsMissing) {
  fake_cuda::start({.num_devices = 2});
  World world(2, milliseconds(300));
  std::mutex mutex;
  std::vector<std::string> told;
  world.run({}, [&](Member& member) {
    const int rank = member.rank();
    const auto other = world.rendezvous(rank).join(whole_group(2, rank, Purpose::kGather));
    const test::OwnedTensor x(DType::kF32, test::Values(64, 1.0));
    Communicator& called = rank == 0 ? member.communicator : *other;
    const std::string text = test::error_text<PeerError>([&] {
      called.all_reduce(member.stream, rank == 0 ? "x" : "y", x.tensor());
      member.finish(member.stream);
    });
    test::error_text<PeerError>([&] { member.stream.synchronize(); });
    std::lock_guard lock(mutex);
    told.push_back(text);
  });
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0], told[1]);
  EXPECT_TRUE(
      told[0] == "rank 0 waited 0.3 s for rank 1 in all_reduce of x. Read rank 1's log first." ||
      told[0] == "rank 1 waited 0.3 s for rank 0 in all_reduce of y. Read rank 0's log first.")
      << told[0];
}

TEST(NcclProcesses, ADeathIsHeardByAllRanksThatWait) {
  fake_cuda::start({.num_devices = 3});
  {
    World world(3, kPatience);
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

}  // namespace
}  // namespace sherd::sharding
