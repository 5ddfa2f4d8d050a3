/// Memory nodes (NUMA) of this machine, and the node of each rank.
///
/// A processor accesses the memory of its own node faster, and the system places memory where it is
/// first touched. So on a machine with several nodes, a rank's threads stay on the cores of one
/// node, and the rank's memory is allocated there.
///
/// Source    /sys/devices/system/node/node*/cpulist (Linux,
///           Documentation/ABI/stable/sysfs-devices-node).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sherd::engine {

struct MemoryNode {
  int number = 0;
  std::vector<int> cores;  ///< usable by this process, in ascending order
};

/// "0-2,8" as {0, 1, 2, 8}; empty if the text isn't such a list.
std::vector<int> cores_of_list(std::string_view text);
/// {0, 1, 2, 8} as "0-2,8".
std::string list_of_cores(const std::vector<int>& cores);

/// The nodes in `folder` with cores among `usable`, by number; none if the system has no
/// information.
std::vector<MemoryNode> memory_nodes(const std::string& folder, const std::vector<int>& usable);
/// The nodes of this machine.
std::vector<MemoryNode> memory_nodes();

/// The index of the node of rank `rank` of `num_ranks` in this process; -1: the rank isn't bound.
/// Neighbours share a node, since they exchange the most. All nodes get equally many ranks. If that
/// isn't possible (fewer ranks, a remainder, nodes of unequal size), no rank is bound.
int node_of_rank(const std::vector<MemoryNode>& nodes, int rank, int num_ranks);

/// Binds the calling thread, and threads that it starts later, to these cores. If the system
/// refuses, nothing changes.
void run_on_cores(const std::vector<int>& cores);

/// Restores the calling thread's current cores on destruction.
class KeptCores {
 public:
  KeptCores();
  ~KeptCores();
  KeptCores(const KeptCores&) = delete;
  KeptCores& operator=(const KeptCores&) = delete;

 private:
  std::vector<int> cores_;
};

/// The cores that the calling thread may run on; none if the system has no information.
std::vector<int> cores_of_this_thread();

}  // namespace sherd::engine
