/// Ranks that are threads of one process: they read each other's memory, so a collective is "meet,
/// read, meet again". The first meeting says that every buffer is ready, the second that no rank
/// reads it any more.
///
///   all_gather       meet; copy every other slice into full; meet
///   reduce_scatter   meet; out = full_0's slice + full_1's slice + ..., in rank order; meet
///   all_reduce       meet; own slice of full = the sum in rank order; meet; copy the other slices;
///                    meet
///
/// Waiting ranks sleep. A rank that waits longer than the timeout names the ranks it waited for.
#pragma once

#include <chrono>
#include <memory>

#include "sharding/comm/rendezvous.h"

namespace sherd::sharding {

/// The threads of one process that are the ranks of one world share one of these. Joining doesn't
/// wait; the first collective does.
std::shared_ptr<Rendezvous> make_thread_rendezvous(
    std::chrono::milliseconds timeout = kDefaultPeerTimeout);

}  // namespace sherd::sharding
