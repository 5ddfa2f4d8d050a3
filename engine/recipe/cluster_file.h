/// A cluster as a file, for plans of machines that aren't at hand (`sherd plan --cluster FILE`):
///
///   machines: 4
///   ranks_per_machine: 8
///   device: H100                # A100, H100, H200 or cpu
///   memory: 80GiB               # of a rank; default: the device's
///   within:                     # links of a rank in its machine, each way
///     bandwidth: 450GB          # per second
///     latency_us: 13            # of the smallest exchange
///   between:                    # a rank's share of its machine's network cards
///     bandwidth: 50GB
///     latency_us: 6
///   host:                       # links of a GPU to its host's memory, each way
///     bandwidth: 50GB
///   host_memory:                # that a machine's ranks share: reads and writes together
///     bandwidth: 400GB
///   servers:                    # links of a parameter server, which isn't on these machines
///     bandwidth: 125MB
///     latency_us: 100
///
/// Only machines, ranks_per_machine and device are needed. Links that are left out are those that
/// are usual for the device, and reported as assumed. Without `servers`, parameter servers have the
/// links of workers: within one machine, else between machines.
///
/// Errors   UsageError naming the file and the key: unknown, missing or not a number; several kinds
///          of machines or devices.
#pragma once

#include <cstdint>
#include <string>

namespace sherd::engine {

struct ClusterLink {
  double bytes = 0.0;    ///< per second; 0: not given
  double latency = 0.0;  ///< seconds; 0: not given

  bool is_given() const { return bytes > 0.0 || latency > 0.0; }
};

struct Cluster {
  std::int64_t machines = 1, ranks_per_machine = 1;
  std::string device;             ///< "A100", "H100", "H200", "cpu"
  std::int64_t memory_bytes = 0;  ///< of a rank; 0: the device's
  ClusterLink within{}, between{}, host{}, host_memory{}, servers{};

  std::int64_t ranks() const { return machines * ranks_per_machine; }
  bool on_cpus() const { return device == "cpu"; }
};

/// At most this many ranks, as in a recipe.
inline constexpr std::int64_t kMostClusterRanks = 65'536;

Cluster cluster_from(const std::string& yaml, const std::string& where);
Cluster read_cluster(const std::string& path);

}  // namespace sherd::engine
