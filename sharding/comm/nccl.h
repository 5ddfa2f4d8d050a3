/// Ranks with a GPU each, over NCCL: one thread per GPU inside a process. (Many machines join with
/// a shared id instead of a list of devices; that is the distributed issue's.)
///
/// Sums   in NCCL's order, which is fixed for a communicator but isn't rank order; 16-bit sums are
///        rounded at every hop. Reduce in f32 (mixed_precision.reduce_dtype) to stay close to
///        `threads`.
/// Abort  stops the kernels of all ranks that wait in a collective; what stands in their buffers
///        then is garbage, and their next call throws PeerError with the reason.
#pragma once

#include <memory>
#include <vector>

#include "sharding/comm/communicator.h"

namespace sherd::sharding {

/// Rank r of one new group is on devices[r]; no device twice. Blocks until all are connected.
std::vector<std::unique_ptr<Communicator>> make_nccl_communicators(const std::vector<int>& devices);

}  // namespace sherd::sharding
