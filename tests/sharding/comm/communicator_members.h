/// The ranks of this process in a test of communicators: a thread each, with a worker stream.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "sharding/comm/rendezvous.h"
#include "sharding/mesh/process_groups.h"
#include "tests/sharding/comm/communicator_conformance.h"

namespace sherd::sharding {

using Communicators = std::vector<std::unique_ptr<Communicator>>;

inline void run_member(Communicator& communicator, const GroupOptions& options,
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

inline void run_members(const Communicators& communicators, const GroupOptions& options,
                        const std::function<void(Member&)>& body) {
  std::vector<std::thread> threads;
  for (const auto& communicator : communicators) {
    threads.emplace_back([&] { run_member(*communicator, options, body); });
  }
  for (std::thread& thread : threads) thread.join();
}

/// What ranks [first, first + count) of a world get that join it one after another.
inline Communicators joined(Rendezvous& rendezvous, int world_size, int first, int count) {
  Communicators communicators;
  for (int rank = first; rank < first + count; ++rank) {
    communicators.push_back(
        rendezvous.join(group_of(Mesh::sharded(world_size), rank, zero_axes(), Purpose::kGather)));
  }
  return communicators;
}
inline Communicators joined(Rendezvous& rendezvous, int world_size) {
  return joined(rendezvous, world_size, 0, world_size);
}

}  // namespace sherd::sharding
