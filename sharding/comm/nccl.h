/// Ranks with a GPU each, over NCCL: one thread per GPU inside a process, in one process or in several, on
/// one machine or on several. NCCL finds the way between machines itself, once all members of a group have
/// the group's id, which the process of its first member makes and sends to the others.
///
/// Sums   in NCCL's order, which is fixed for a communicator but isn't rank order; 16-bit sums are
///        rounded at every hop. Reduce in f32 (mixed_precision.reduce_dtype) to stay close to
///        `threads`.
/// Order  of calls is the order of execution, over all communicators of a rank: NCCL 2.26 and newer see
///        to that (NCCL_LAUNCH_ORDER_IMPLICIT).
/// Wait   a collective that a GPU has waited in for longer than the timeout aborts the world, with who
///        waited for whom; so does one that a rank calls where another calls something else. Between
///        processes both are found out when the timeout is over: then the others are asked where they are.
/// Abort  stops the kernels of all ranks that wait in a collective; what stands in their buffers
///        then is garbage, and their next call, or `check_alive`, throws PeerError with the reason.
/// End    a communicator is destroyed when all members destroy theirs, in the same order on all ranks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/cuda_device.h"
#include "sharding/comm/rendezvous.h"

namespace sherd::sharding {

/// How the processes of a world exchange messages apart from NCCL (sharding/processes/control_links.h).
class NcclProcesses {
 public:
  virtual ~NcclProcesses() = default;
  /// A notice for the processes of some ranks, in the place of the one under this name before.
  virtual void tell(const std::vector<int>& ranks, const std::string& name,
                    const std::string& notice) = 0;
  /// Nothing if none has come by then, or the world was aborted.
  virtual std::optional<std::string> told(const std::string& name,
                                          std::chrono::milliseconds within) = 0;
  /// Ends the world on all of them.
  virtual void abort(const std::string& reason) = 0;
  /// "" until it has been ended.
  virtual std::string abort_reason() = 0;
};

/// Which of the world's ranks are threads of this process, and on which GPU each of them is; no GPU twice.
struct NcclRanks {
  int first = 0;
  std::vector<int> devices{};  ///< of ranks first, first + 1, ...
  int world_size = 0;
};

/// Joining waits for the other members. Once for the processes of a world. `processes`: where they are in several; must outlive it, and whoever
/// hears of an abort there aborts this.
/// Errors   UsageError: more than one rank, and NCCL is older than 2.26.
std::shared_ptr<Rendezvous> make_nccl_rendezvous(const NcclRanks& ranks,
                                                 std::chrono::milliseconds timeout,
                                                 NcclProcesses* processes);
/// Of one process: rank r of the world is on devices[r].
std::shared_ptr<Rendezvous> make_nccl_rendezvous(
    std::vector<int> devices, std::chrono::milliseconds timeout = kDefaultPeerTimeout);

/// Which NCCL the loader has found.
LoadedLibrary nccl_library();

}  // namespace sherd::sharding
