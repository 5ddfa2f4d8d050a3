/// Ranks of one process whose buffers all lie where one GPU can read them: `threads` for queues. So
/// every stage runs, and is tested, on a machine with a single GPU.
///
/// The threads that fill the queues meet (sharding/comm/meeting_place.h) and exchange events; the
/// queues wait for the events, the threads don't wait for the queues:
///
///   all_gather       ready; meet; copy every other slice into full; done; meet
///   reduce_scatter   ready; meet; out = full_0's slice + full_1's slice + ..., in rank order;
///   done;
///                    meet
///   all_reduce       ready; meet; own slice = the sum in rank order; summed; meet; copy the other
///                    slices; done; meet
///
/// Between "meet" and what follows, the queue waits for the others' event of that name; after the
/// last meeting it waits for their `done`, so that nobody writes what is still being read.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "sharding/comm/communicator.h"

namespace sherd::sharding {

/// The communicators of ranks 0 .. world_size - 1 of one new group. Their streams are on GPUs.
std::vector<std::unique_ptr<Communicator>> make_shared_device_communicators(
    int world_size, std::chrono::milliseconds timeout);

}  // namespace sherd::sharding
