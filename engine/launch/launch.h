/// Starts the ranks of a process: one thread each, with its streams, communicators and memory.
///
/// On a CPU ranks share the cores: cores / ranks compute threads each, at least one; a rank of a
/// GPU has one. If one rank throws, the whole world is aborted with the reason (Rendezvous::abort),
/// so that the others stop instead of waiting; `run_ranks` then rethrows the first error. If the
/// world has several processes, each calls `run_ranks` for its own ranks.
#pragma once

#include <chrono>
#include <functional>

#include "core/trace.h"
#include "engine/launch/machine.h"
#include "sharding/comm/threads.h"
#include "sharding/mesh/rank.h"

namespace sherd {
class OffloadHome;
}

namespace sherd::engine {

using PlanOfRank = std::function<MemoryPlan(int r)>;

struct LaunchOptions {
  sharding::Mesh mesh{};
  int world_size() const { return mesh.world_size(); }
  std::shared_ptr<const Machine> machine = cpu_machine();
  int threads_per_rank = 0;  ///< 0: num_usable_cores() / ranks, at least 1
  BoundaryHook hook;         ///< on every stream of every rank; for tests
  Trace* trace = nullptr;
  /// The memory of rank r; called on that rank's thread. Empty: from the heap, without a plan; only
  /// if device and host share their memory.
  PlanOfRank plan;
  /// The same for host memory that the rank's device can access, if the device has its own memory.
  PlanOfRank host_plan;
  /// Where a rank keeps state that is offloaded; called on its thread, when it has memory and
  /// streams. Empty: nothing is.
  std::function<std::shared_ptr<OffloadHome>(const sharding::Rank& rank)> offload_home;
  std::chrono::milliseconds peer_timeout = sharding::kDefaultPeerTimeout;
  /// Called with a rank's last collectives (sharding/comm/flight_recorder.h): if it has ended
  /// because of another rank, or still runs some time after `stop_asked`. May be called by any
  /// thread, even by two at once. Must not throw.
  std::function<void(int rank, const std::string& calls)> on_calls;
  /// Whether a signal asks the run to end; any thread may ask.
  std::function<bool()> stop_asked;
  /// Called if ranks of this process don't end although another has failed
  /// (engine/launch/rank_watch.h). `run_ranks` can't return then, so this should end the process.
  /// Empty: `run_ranks` waits for them.
  std::function<void(const std::vector<int>& ranks, std::exception_ptr failure)> on_stuck;

  int compute_threads() const;
  /// The same for host code that works for a rank on a GPU.
  int host_threads() const;
};

/// A rank on a GPU has one compute thread, which fills the queues. Other ranks have the requested
/// number, or a fair share of the cores.
int threads_of_rank(DeviceKind device, int asked, int world_size);

/// Runs `body` on every rank of this process, each on its own thread (the first on the caller's),
/// and returns when all have ended. `body` builds what it needs and does its work inside
/// `rank.guard`.
/// Errors   the first error of a rank; TrainingError if a rank's thread can't be started.
void run_ranks(const LaunchOptions& options, const std::function<void(sharding::Rank&)>& body);

}  // namespace sherd::engine
