/// Ranks of one process whose buffers all lie where one GPU can read them: `threads` for queues. So
/// every stage runs, and is tested, on a machine with a single GPU.
///
/// The threads that fill the queues meet (sharding/comm/meeting_place.h) and exchange events. The
/// queues wait for the events; the threads don't wait for the queues:
///
///   all_gather       ready; meet; copy every other slice into full; done; meet
///   reduce_scatter   ready; meet; out = full_0's slice + full_1's slice + ..., in rank order;
///                    done; meet
///   all_reduce       ready; meet; own slice = the sum in rank order; summed; meet; copy the other
///                    slices; done; meet
///
/// Between "meet" and what follows, the queue waits for the others' event of that name. After the
/// last meeting it waits for their `done`, so that no rank overwrites what is still being read.
#pragma once

#include <chrono>
#include <memory>

#include "sharding/comm/rendezvous.h"

namespace sherd::sharding {

/// As make_thread_rendezvous, for ranks whose streams are on the shared GPU.
/// Errors   UsageError from join: more ranks than can share a GPU.
std::shared_ptr<Rendezvous> make_shared_device_rendezvous(std::chrono::milliseconds timeout);

}  // namespace sherd::sharding
