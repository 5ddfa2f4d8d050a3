#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/arena.h"
#include "engine/launch/machine.h"
#include "engine/launch/matmul_rate.h"
#include "engine/launch/memory_nodes.h"
#include "engine/launch/system_info.h"
#include "kernels/isa.h"
#include "sharding/comm/threads.h"
#include "sharding/processes/processes.h"

namespace sherd::engine {
namespace {

// Ranks are threads of this process alone.
class CpuMachine final : public Machine {
 public:
  explicit CpuMachine(std::vector<MemoryNode> nodes) : nodes_(std::move(nodes)) {}

  void bind_rank(int r, int world_size) const override {
    const int node = node_of_rank(nodes_, r, world_size);
    if (node >= 0) run_on_cores(nodes_[static_cast<std::size_t>(node)].cores);
  }
  std::string description(int world_size, int threads_per_rank) const override {
    std::string text = Machine::description(world_size, threads_per_rank);
    if (node_of_rank(nodes_, 0, world_size) < 0) return text;
    const auto on_each = world_size / static_cast<int>(nodes_.size());
    return text + fmt::format("; {} rank{} on each of {} memory nodes", on_each,
                              on_each == 1 ? "" : "s", nodes_.size());
  }

 private:
  const std::vector<MemoryNode> nodes_;
};

}  // namespace

std::unique_ptr<Stream> Machine::make_stream(StreamOptions options) const {
  return options.purpose == StreamPurpose::kCompute ? make_cpu_compute_stream(std::move(options))
                                                    : make_cpu_worker_stream(std::move(options));
}

std::unique_ptr<Allocator> Machine::make_memory(MemoryPlan plan) const {
  return std::make_unique<Arena>(std::move(plan));
}

std::unique_ptr<Allocator> Machine::make_host_memory(MemoryPlan plan) const {
  return std::make_unique<Arena>(std::move(plan));
}

std::shared_ptr<sharding::Rendezvous> Machine::make_rendezvous(
    std::chrono::milliseconds peer_timeout) const {
  return sharding::make_thread_rendezvous(peer_timeout);
}

double Machine::matmul_peak(DType dtype, int threads_here) const {
  const int processes_here = processes() ? processes()->num_on_this_host() : 1;
  const int cores = std::max(1, num_usable_cores() / processes_here);
  return (processes() ? processes()->count() : 1) *
         measure_matmul_peak(dtype, std::min(threads_here, cores));
}

std::string Machine::description(int world_size, int threads_per_rank) const {
  const int cores = num_usable_cores();
  std::string text = fmt::format("with {} compute thread{} each on {} core{}, matmuls with {}",
                                 threads_per_rank, threads_per_rank == 1 ? "" : "s", cores,
                                 cores == 1 ? "" : "s", kernels::name_of(kernels::isa()));
  if (world_size * threads_per_rank > cores) {
    text += ": more threads than cores, so ranks take turns and each is slower";
  }
  return text;
}

std::shared_ptr<const Machine> cpu_machine(std::vector<MemoryNode> nodes) {
  kernels::isa();  // a SHERD_ISA that can't be met is an error before anything is written
  return std::make_shared<CpuMachine>(std::move(nodes));
}

}  // namespace sherd::engine
