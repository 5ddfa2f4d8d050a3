/// The processes of a world, started together by mpirun (sharding/processes/mpi.h) or by whoever says so in the
/// environment (sharding/processes/environment.h), as one of them sees them.
///
/// Every process has the same number of ranks, each a thread: with k ranks per process, rank r of the
/// world is in process r / k.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "sharding/comm/rendezvous.h"
#include "sharding/processes/control_links.h"

namespace sherd::sharding {

/// How a process has ended, as it tells the others.
struct ProcessEnd {
  int exit_code = 0;
  std::string message;       ///< "" if it has ended well
  bool consequence = false;  ///< of what another process said
};

struct MachinesOfProcesses {
  std::vector<int> of_process{};  ///< the number of each process's machine; empty: all are on one
  /// Gathers cross from machine to machine once, and are passed on there (sharding/processes/mpi.h); else they go
  /// straight to every rank.
  bool pass_gathers_on = false;
  /// Gradients are added on a machine before they cross to another one (sharding/processes/mpi_machine_sums.h): not in
  /// rank order.
  bool add_on_machines = false;
};

class Processes {
 public:
  virtual ~Processes() = default;

  int index() const { return links_->process(); }
  int count() const { return links_->num_processes(); }
  /// The machine of each process.
  const std::vector<std::string>& hosts() const { return hosts_; }
  /// The number of each process's machine.
  std::vector<int> machines() const;
  /// Of this process: those on its machine, itself among them.
  int num_on_this_host() const;
  /// Its number among those on its machine.
  virtual int index_on_this_host() const;
  /// For what isn't tensors.
  ControlLinks& links() const { return *links_; }

  /// Whether ranks on CPUs can exchange tensors; GPUs do by NCCL in any case.
  virtual bool carries_tensors() const { return true; }
  /// Where the ranks of all processes meet on CPUs. Once.
  virtual std::shared_ptr<Rendezvous> make_rendezvous(int ranks_per_process,
                                                      std::chrono::milliseconds timeout,
                                                      const MachinesOfProcesses& machines = {}) = 0;

  /// The last word of this process. Returns what every process said, in their order, as soon as all
  /// have: nothing for those that are dead, or of which nothing is heard within `patience`.
  std::vector<std::optional<ProcessEnd>> end(const ProcessEnd& own,
                                             std::chrono::milliseconds patience);

 protected:
  explicit Processes(std::unique_ptr<ControlLinks> links) : links_(std::move(links)) {}
  void learn_hosts();

  std::unique_ptr<ControlLinks> links_;
  std::vector<std::string> hosts_;
};

/// As many as mpirun, or srun, says in the environment that it has started; 1 where this process was
/// started alone.
int num_processes_started();

/// This machine's.
std::string host_name();

/// "rank 3 on node7", "ranks 4 to 7 on node7".
std::string name_of_ranks(int first, int count, const std::string& host);

}  // namespace sherd::sharding
