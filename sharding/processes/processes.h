/// The processes of a world, as one of them sees them. mpirun starts them
/// (sharding/processes/mpi.h), or another launcher that describes them in the environment
/// (sharding/processes/environment.h).
///
/// Every process has the same number of ranks, each a thread. With k ranks per process, rank r of
/// the world is in process r / k.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "sharding/comm/rendezvous.h"
#include "sharding/processes/control_links.h"

namespace sherd::sharding {

/// How a process has ended, as it reports to the others.
struct ProcessEnd {
  int exit_code = 0;
  std::string message;       ///< "" if it has ended well
  bool consequence = false;  ///< whether another process's failure caused it
};

struct MachinesOfProcesses {
  std::vector<int> of_process{};  ///< the number of each process's machine; empty: all are on one
  /// Gathers send each slice to another machine once, where it is forwarded
  /// (sharding/processes/mpi.h). Otherwise slices go straight to every rank.
  bool pass_gathers_on = false;
  /// Gradients are added within a machine before they are sent to another one
  /// (sharding/processes/mpi_machine_sums.h). The sum is then not in rank order.
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
  /// Number of processes on this process's machine, including itself.
  int num_on_this_host() const;
  /// This process's index among those on its machine.
  virtual int index_on_this_host() const;
  /// For everything except tensors.
  ControlLinks& links() const { return *links_; }

  /// Whether ranks on CPUs can exchange tensors; GPUs always use NCCL.
  virtual bool carries_tensors() const { return true; }
  /// Where the ranks of all processes meet on CPUs. Call it once.
  virtual std::shared_ptr<Rendezvous> make_rendezvous(int ranks_per_process,
                                                      std::chrono::milliseconds timeout,
                                                      const MachinesOfProcesses& machines = {}) = 0;

  /// Sends this process's final report. Returns every process's report, in process order, as soon
  /// as all are there. A report is empty if the process is dead, or silent for `patience`.
  std::vector<std::optional<ProcessEnd>> end(const ProcessEnd& own,
                                             std::chrono::milliseconds patience);

 protected:
  explicit Processes(std::unique_ptr<ControlLinks> links) : links_(std::move(links)) {}
  void learn_hosts();

  std::unique_ptr<ControlLinks> links_;
  std::vector<std::string> hosts_;
};

/// Number of processes that mpirun or srun started, according to the environment; 1 if this process
/// was started alone.
int num_processes_started();

/// This machine's name.
std::string host_name();

/// "rank 3 on node7", "ranks 4 to 7 on node7".
std::string name_of_ranks(int first, int count, const std::string& host);

}  // namespace sherd::sharding
