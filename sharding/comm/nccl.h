/// Ranks with one GPU each, over NCCL: one thread per GPU, in one process or several, on one
/// machine or several. The process of a group's first member creates the group's id and sends it to
/// the others. Once all members have it, NCCL finds the connections between machines itself.
///
/// Sums   in NCCL's order, which is fixed for a communicator but isn't rank order; 16-bit sums are
///        rounded at every hop. Reduce in f32 (mixed_precision.reduce_dtype) to stay close to
///        `threads`.
/// Order  of execution is the order of calls, over all communicators of a rank: NCCL 2.26 and newer
///        ensure that (NCCL_LAUNCH_ORDER_IMPLICIT).
/// Wait   a collective in which a GPU has waited longer than the timeout aborts the world, and the
///        reason says who waited for whom. Ranks that call different collectives abort it too.
///        Between processes both are detected when the timeout is over, by asking the other
///        processes where they are.
/// Abort  stops the kernels of all ranks that wait in a collective. Their buffers then contain
///        garbage, and their next call, or `check_alive`, throws PeerError with the reason.
/// End    a communicator is destroyed when all members destroy theirs, in the same order on all
///        ranks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/cuda_device.h"
#include "sharding/comm/rendezvous.h"

namespace sherd::sharding {

/// How the processes of a world exchange messages outside of NCCL
/// (sharding/processes/control_links.h).
class NcclProcesses {
 public:
  virtual ~NcclProcesses() = default;
  /// Sends a notice to the processes of some ranks. It replaces the previous notice of this name.
  virtual void tell(const std::vector<int>& ranks, const std::string& name,
                    const std::string& notice) = 0;
  /// Empty if none has come within this time, or the world was aborted.
  virtual std::optional<std::string> told(const std::string& name,
                                          std::chrono::milliseconds within) = 0;
  /// Aborts the world on all of them.
  virtual void abort(const std::string& reason) = 0;
  /// "" until the world is aborted.
  virtual std::string abort_reason() = 0;
};

/// Which world ranks are threads of this process, and the GPU of each; no GPU appears twice.
struct NcclRanks {
  int first = 0;
  std::vector<int> devices{};  ///< of ranks first, first + 1, ...
  int world_size = 0;
};

/// Joining waits for the other members. Call it once for the processes of a world. `processes`
/// connects them if there are several. It must outlive the result, and an abort reported there
/// aborts this too.
/// Errors   UsageError: more than one rank, and NCCL is older than 2.26.
std::shared_ptr<Rendezvous> make_nccl_rendezvous(const NcclRanks& ranks,
                                                 std::chrono::milliseconds timeout,
                                                 NcclProcesses* processes);
/// In one process: rank r of the world is on devices[r].
std::shared_ptr<Rendezvous> make_nccl_rendezvous(
    std::vector<int> devices, std::chrono::milliseconds timeout = kDefaultPeerTimeout);

/// The NCCL library that the loader found.
LoadedLibrary nccl_library();

}  // namespace sherd::sharding
