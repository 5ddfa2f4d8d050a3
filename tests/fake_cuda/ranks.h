/// Ranks on the fake machine, for the communicators' conformance suite.
#pragma once

#include <algorithm>
#include <latch>
#include <thread>

#include "core/cuda_device.h"
#include "sharding/mesh/process_groups.h"
#include "tests/fake_cuda/machine.h"
#include "tests/sharding/comm/communicator_conformance.h"

namespace sherd::sharding {

/// The group that all of a world's ranks make up.
inline Group whole_group(int world_size, int rank, Purpose purpose = Purpose::kReduce) {
  return group_of(Mesh::sharded(world_size), rank, zero_axes(), purpose);
}

/// Runs `body` on every rank: a thread that is on its device, joins, works and leaves by itself.
/// `rendezvous_of(rank)`: the same for ranks of one process.
inline void run_on_gpus(int world_size, const std::vector<int>& devices,
                        const std::function<Rendezvous&(int rank)>& rendezvous_of,
                        const GroupOptions& options, const std::function<void(Member&)>& body) {
  std::latch all_joined(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      const int device = devices[static_cast<std::size_t>(rank)];
      Rendezvous& rendezvous = rendezvous_of(rank);
      try {
        use_cuda_device(device);
        const auto make_stream = [&]() -> std::unique_ptr<Stream> {
          StreamOptions stream;
          stream.purpose = StreamPurpose::kReduce;
          stream.name = "reduce";
          stream.rank = rank;
          stream.hook = options.hook;
          return make_cuda_stream(stream, {.device = device});
        };
        const auto communicator = rendezvous.join(whole_group(world_size, rank));
        all_joined.arrive_and_wait();  // an abort in a body must find everybody in the group
        const auto stream = make_stream();
        Member member{*communicator, *stream, make_stream};
        try {
          body(member);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
          communicator->abort(error.what());
        }
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
        all_joined.count_down();
        rendezvous.abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline void run_on_gpus(int world_size, const std::vector<int>& devices, Rendezvous& rendezvous,
                        const GroupOptions& options, const std::function<void(Member&)>& body) {
  run_on_gpus(
      world_size, devices, [&](int) -> Rendezvous& { return rendezvous; }, options, body);
}

/// As often as the seeds: on a machine that takes the work in another order each time, and is left as
/// it was found.
using MakeRendezvous =
    std::function<std::shared_ptr<Rendezvous>(std::chrono::milliseconds timeout)>;
inline CommunicatorKind on_gpus(std::string name, int world_size, std::vector<int> devices,
                                bool adds_in_rank_order, std::uint64_t seed, MakeRendezvous make) {
  const auto run = [=](const GroupOptions& options, const std::function<void(Member&)>& body) {
    fake_cuda::start(
        {.num_devices = 1 + *std::max_element(devices.begin(), devices.end()), .seed = seed});
    {
      const auto rendezvous = make(options.timeout);
      run_on_gpus(world_size, devices, *rendezvous, options, body);
    }
    EXPECT_EQ(fake_cuda::left_behind(), "");
    EXPECT_EQ(fake_cuda::races(), std::vector<std::string>());
  };
  return {.name = name + "Seed" + std::to_string(seed) + "World",
          .world_size = world_size,
          .adds_in_rank_order = adds_in_rank_order,
          .run = run,
          .has_trees = false};
}

}  // namespace sherd::sharding
