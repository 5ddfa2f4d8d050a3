/// Memory nodes of this machine, and which of them each rank belongs to.
///
/// A processor reaches the memory of its own node faster, and the system places memory where it is first touched. So on
/// a machine with several nodes the threads of a rank stay on the cores of one, and what the rank allocates lies there.
///
/// Source    /sys/devices/system/node/node*/cpulist (Linux, Documentation/ABI/stable/sysfs-devices-node).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sherd::engine {

struct MemoryNode {
  int number = 0;
  std::vector<int> cores;  ///< those that this process may use, in ascending order
};

/// "0-2,8" as {0, 1, 2, 8}; empty if the text isn't such a list.
std::vector<int> cores_of_list(std::string_view text);
/// {0, 1, 2, 8} as "0-2,8".
std::string list_of_cores(const std::vector<int>& cores);

/// The nodes in `folder` that have cores out of `usable`, by number; none where the system doesn't say.
std::vector<MemoryNode> memory_nodes(const std::string& folder, const std::vector<int>& usable);
/// Of this machine.
std::vector<MemoryNode> memory_nodes();

/// The node of rank `rank` of `num_ranks` in this process, as an index; -1: the rank isn't bound to any. Neighbours share
/// a node, since they exchange the most. All nodes get equally many ranks; where that isn't possible, because there are
/// fewer ranks, a remainder or nodes of unequal size, none is bound.
int node_of_rank(const std::vector<MemoryNode>& nodes, int rank, int num_ranks);

/// The calling thread, and those that it starts from now on, run on these cores alone. What the system refuses is left.
void run_on_cores(const std::vector<int>& cores);

/// Gives the calling thread, in the end, the cores that it has now.
class KeptCores {
 public:
  KeptCores();
  ~KeptCores();
  KeptCores(const KeptCores&) = delete;
  KeptCores& operator=(const KeptCores&) = delete;

 private:
  std::vector<int> cores_;
};

/// The cores that the calling thread may run on; none where the system doesn't say.
std::vector<int> cores_of_this_thread();

}  // namespace sherd::engine
