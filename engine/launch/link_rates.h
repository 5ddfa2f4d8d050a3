/// How fast processes exchange: measured between the processes of a world, inside each machine and
/// between machines, for a cluster's file (engine/recipe/cluster_file.h).
///
/// Every process is one rank. Two sizes of gathers are timed, all groups at the same time, so a
/// bandwidth is a rank's share of what its machine has:
///
///   latency     seconds of the smallest gather / other ranks in its group
///   bandwidth   bytes that a rank sends in a large gather / (its seconds - the smallest's)
///
/// The medians of several rounds count; of all groups, the slowest.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sharding/processes/processes.h"

namespace sherd::engine {

struct LinkRate {
  int ranks = 0;           ///< of a group
  double bandwidth = 0.0;  ///< bytes per second that a rank sends, and receives as many
  double latency = 0.0;    ///< seconds
};

struct LinkRates {
  int machines = 1, ranks_per_machine = 1;
  std::int64_t memory_bytes = 0;  ///< of a rank: its share of the smallest machine's
  std::optional<LinkRate> within{}, between{};
};

/// Called by every process, which all get the same result.
/// Errors   UsageError: one process, or machines with different numbers of processes.
LinkRates measure_links(sharding::Processes& processes);

/// A cluster's file of CPUs with these links.
std::string cluster_text(const LinkRates& rates);

}  // namespace sherd::engine
