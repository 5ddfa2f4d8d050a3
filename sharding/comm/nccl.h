/// Ranks with a GPU each, over NCCL: one thread per GPU inside a process. (Many machines join with
/// a shared id instead of a list of devices; not built yet.)
///
/// Sums   in NCCL's order, which is fixed for a communicator but isn't rank order; 16-bit sums are
///        rounded at every hop. Reduce in f32 (mixed_precision.reduce_dtype) to stay close to
///        `threads`.
/// Order  of calls is the order of execution, over all communicators of a rank: NCCL 2.26 and newer see
///        to that (NCCL_LAUNCH_ORDER_IMPLICIT).
/// Wait   a collective that a GPU has waited in for longer than the timeout aborts the world, with who
///        waited for whom; so does one that a rank calls where another calls something else.
/// Abort  stops the kernels of all ranks that wait in a collective; what stands in their buffers
///        then is garbage, and their next call, or `check_alive`, throws PeerError with the reason.
/// End    a communicator is destroyed when all members destroy theirs, in the same order on all ranks.
#pragma once

#include <memory>
#include <vector>

#include "core/cuda_device.h"
#include "sharding/comm/rendezvous.h"

namespace sherd::sharding {

/// Rank r of the world is on devices[r]; no device twice. Joining waits for the other members.
/// Errors   UsageError: more than one rank, and NCCL is older than 2.26.
std::shared_ptr<Rendezvous> make_nccl_rendezvous(
    std::vector<int> devices, std::chrono::milliseconds timeout = kDefaultPeerTimeout);

/// Which NCCL the loader has found.
LoadedLibrary nccl_library();

}  // namespace sherd::sharding
