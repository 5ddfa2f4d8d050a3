#include "engine/launch/process_machine.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "core/error.h"
#include "engine/launch/device.h"
#include "engine/launch/system_info.h"
#include "kernels/isa.h"
#include "sharding/processes/mpi.h"

namespace sherd::engine {
namespace {

// The cores that this process may run on, a hexadecimal digit for each four; empty if they aren't
// known, as on machines with more cores than a cpu_set_t.
std::string own_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return "";
  std::string cores;
  for (std::size_t first = 0; first < CPU_SETSIZE; first += 4) {
    unsigned digit = 0;
    for (std::size_t i = 0; i < 4; ++i) digit |= CPU_ISSET(first + i, &set) ? 1u << i : 0u;
    cores += "0123456789abcdef"[digit];
  }
  cores.erase(cores.find_last_not_of('0') + 1);
  return cores;
}

unsigned digit_of(const std::string& cores, std::size_t place) {
  if (place >= cores.size()) return 0;
  const char digit = cores[place];
  return static_cast<unsigned>(digit <= '9' ? digit - '0' : digit - 'a' + 10) & 15u;
}

// Cores that the processes of this host may use together.
int cores_of_host(sharding::Processes& processes) {
  const std::string own = own_cores();
  const std::vector<std::string> all = processes.links().all_gather("cores", own);
  const std::vector<std::string>& hosts = processes.hosts();
  const int usable = num_usable_cores();
  if (own.empty()) return usable;
  int num_own = 0, num_together = 0;
  for (std::size_t place = 0; place < CPU_SETSIZE / 4; ++place) {
    unsigned together = 0;
    for (std::size_t process = 0; process < all.size(); ++process) {
      const bool here = hosts[process] == hosts[static_cast<std::size_t>(processes.index())];
      if (here) together |= digit_of(all[process], place);
    }
    num_own += std::popcount(digit_of(own, place));
    num_together += std::popcount(together);
  }
  // A quota of processor time is the host's, whatever the cores.
  return std::max(1, usable < num_own ? usable : num_together);
}

// run.device: auto may mean different devices on different machines.
void require_one_kind(sharding::Processes& processes, DeviceKind own) {
  const auto kinds =
      processes.links().all_gather("kinds of devices", own == DeviceKind::kCuda ? "a GPU" : "CPUs");
  for (std::size_t process = 1; process < kinds.size(); ++process) {
    if (kinds[process] == kinds[0]) continue;
    const std::vector<std::string>& hosts = processes.hosts();
    throw UsageError(
        "process 0 on {} would run on {}, process {} on {} on {}: set run.device to cpu or cuda.",
        hosts[0], kinds[0], process, hosts[process], kinds[process]);
  }
}

sharding::MachinesOfProcesses machines_of(const sharding::Processes& processes,
                                          const Recipe& recipe) {
  const HierarchicalChoice choice = recipe.parallelism.hierarchical;
  std::vector<int> machines = processes.machines();
  if (choice == HierarchicalChoice::kOn) std::iota(machines.begin(), machines.end(), 0);
  const bool hierarchical = choice != HierarchicalChoice::kOff;
  return {std::move(machines), hierarchical,
          hierarchical && recipe.parallelism.sum_order == SumOrderChoice::kFree};
}

class ProcessMachine final : public Machine {
 public:
  ProcessMachine(std::shared_ptr<sharding::Processes> processes, int world_size, int threads_asked,
                 sharding::MachinesOfProcesses machines)
      : processes_(std::move(processes)),
        machines_(std::move(machines)),
        world_size_(world_size),
        ranks_per_process_(world_size / processes_->count()),
        cores_(cores_of_host(*processes_)) {
    const int on_host = ranks_here(world_size).on_host;
    threads_ = threads_asked > 0 ? threads_asked : std::max(1, cores_ / on_host);
  }

  DeviceTraits traits() const override {
    return {.staging_bytes = sharding::mpi_staging_bytes(world_size_),
            .threads_per_rank = threads_};
  }
  RanksHere ranks_here(int) const override {
    return {.first = processes_->index() * ranks_per_process_,
            .count = ranks_per_process_,
            .on_host = processes_->num_on_this_host() * ranks_per_process_};
  }
  sharding::Processes* processes() const override { return processes_.get(); }

  std::shared_ptr<sharding::Rendezvous> make_rendezvous(
      std::chrono::milliseconds peer_timeout) const override {
    return processes_->make_rendezvous(ranks_per_process_, peer_timeout, machines_);
  }

  std::string description(int world_size, int threads_per_rank) const override {
    std::vector<std::string> hosts = processes_->hosts();
    std::sort(hosts.begin(), hosts.end());
    const auto num_hosts = std::unique(hosts.begin(), hosts.end()) - hosts.begin();
    std::string text = fmt::format(
        "in {} processes on {} ({}), with {} compute thread{} each, matmuls with {}",
        processes_->count(), num_hosts == 1 ? hosts[0] : fmt::format("{} machines", num_hosts),
        sharding::mpi_library(), threads_per_rank, threads_per_rank == 1 ? "" : "s",
        kernels::name_of(kernels::isa()));
    const int threads = ranks_here(world_size).on_host * threads_per_rank;
    if (threads > cores_) {
      text += fmt::format(": {} threads on {} core{}, so ranks take turns and each is slower",
                          threads, cores_, cores_ == 1 ? "" : "s");
    }
    return text;
  }

 private:
  const std::shared_ptr<sharding::Processes> processes_;
  const sharding::MachinesOfProcesses machines_;
  const int world_size_, ranks_per_process_, cores_;
  int threads_ = 1;
};

}  // namespace

std::shared_ptr<const Machine> process_machine(std::shared_ptr<sharding::Processes> processes,
                                               const Recipe& recipe) {
  const auto world_size = static_cast<int>(recipe.world_size());
  const int count = processes->count();
  require_one_kind(*processes, device_traits(recipe).kind);
  if (device_traits(recipe).kind == DeviceKind::kCuda) {
    if (world_size == count) {
      return cuda_machine_of_process(std::move(processes), cuda_options(recipe));
    }
    const std::int64_t others =
        recipe.parallelism.data_parallel_replicate_degree * recipe.model_ranks();
    const bool divides = recipe.parallelism.parameter_servers == 0 && count % others == 0;
    throw UsageError(
        "{} processes were started, of which each has one GPU, and the recipe has {} rank{}. {} {} "
        "processes.",
        count, world_size, world_size == 1 ? "" : "s",
        divides ? fmt::format("Write --ranks {}, or start", count / others) : "Start", world_size);
  }
  if (!processes->carries_tensors()) {
    throw UsageError(
        "{} processes were started by the variables RANK and WORLD_SIZE, which only works for "
        "GPUs. "
        "Ranks on CPUs in several processes need MPI: sherd launch -n {} -- train RECIPE.",
        count, count);
  }
  const std::int64_t replicas = recipe.parallelism.data_parallel_replicate_degree;
  if (world_size % count != 0 && count % replicas != 0 && recipe.model_ranks() == 1) {
    throw UsageError(
        "mpirun started {} processes, and the recipe has {} ranks in {} replicas: each process has "
        "as "
        "many ranks as the others. Start a multiple of {} processes.",
        count, world_size, replicas, replicas);
  }
  if (world_size % count != 0) {
    const std::int64_t others = replicas * recipe.model_ranks();
    const std::int64_t servers = recipe.parallelism.parameter_servers;
    if (servers > 0) {
      throw UsageError(
          "mpirun started {} processes, and the recipe has {} ranks, {} of them parameter servers: "
          "each process has as many ranks as the others. Start {} processes.",
          count, world_size, servers, world_size);
    }
    const std::int64_t fitting = count / std::gcd(std::int64_t{count}, others);
    throw UsageError(
        "mpirun started {} processes, and the recipe has {} rank{}: each process has as many ranks "
        "as "
        "the others. Write --ranks {}, or another multiple of {}.",
        count, world_size, world_size == 1 ? "" : "s", fitting, fitting);
  }
  kernels::isa();  // as cpu_machine
  sharding::MachinesOfProcesses machines = machines_of(*processes, recipe);
  return std::make_shared<ProcessMachine>(std::move(processes), world_size,
                                          static_cast<int>(recipe.run.num_threads),
                                          std::move(machines));
}

}  // namespace sherd::engine
