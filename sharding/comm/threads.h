/// Ranks that are threads of one process: they read each other's memory, so a collective is "meet,
/// read, meet again". The first meeting says that every buffer is ready, the second that nobody
/// reads it any more.
///
///   all_gather       meet; copy every other slice into full; meet
///   reduce_scatter   meet; out = full_0's slice + full_1's slice + ..., in rank order; meet
///   all_reduce       meet; own slice of full = the sum in rank order; meet; copy the other slices;
///   meet
///
/// Waiting ranks sleep. A rank that waits longer than the timeout names those it waited for.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "sharding/comm/communicator.h"

namespace sherd::sharding {

inline constexpr std::chrono::seconds kDefaultPeerTimeout{600};

/// The communicators of ranks 0 .. world_size - 1 of one new group.
std::vector<std::unique_ptr<Communicator>> make_thread_communicators(
    int world_size, std::chrono::milliseconds timeout = kDefaultPeerTimeout);

}  // namespace sherd::sharding
