/// Interface to the hardware of ranks: this machine's processor or its GPUs. Tests have their own
/// machines: one with separate device memory, one with delayed streams.
///
/// One machine serves all ranks of a launch. Each rank's thread calls `bind_rank` first; what it
/// then creates belongs to its device.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/cuda_device.h"
#include "core/memory_plan.h"
#include "engine/launch/memory_nodes.h"
#include "sharding/processes/processes.h"

namespace sherd::engine {

/// Properties of a machine that a memory plan needs, whether or not it is this machine.
struct DeviceTraits {
  DeviceKind kind = DeviceKind::kCpu;
  bool separate_memory = false;    ///< device memory isn't host memory: ranks have a plan for each
  std::int64_t staging_bytes = 0;  ///< of each rank's reductions, if ranks are in several processes
  int threads_per_rank = 0;        ///< if the machine decides; 0: from the recipe
};

/// The ranks that are threads of this process, and how many share its host's cores and memory.
struct RanksHere {
  int first = 0, count = 1, on_host = 1;
};

/// By default, ranks are threads on the processor's cores.
class Machine {
 public:
  virtual ~Machine() = default;
  virtual DeviceTraits traits() const { return {}; }

  virtual RanksHere ranks_here(int world_size) const { return {0, world_size, world_size}; }
  /// The GPUs of this process's ranks; empty: none.
  virtual std::vector<int> devices_here() const { return {}; }
  /// All processes with ranks of this world; null: this process alone.
  virtual sharding::Processes* processes() const { return nullptr; }

  /// Binds the calling thread to rank r of a world of that size.
  virtual void bind_rank(int /*r*/, int /*world_size*/) const {}
  /// A stream for `options.purpose`, on the bound rank's device.
  virtual std::unique_ptr<Stream> make_stream(StreamOptions options) const;
  /// Memory for a plan: on the bound rank's device, and on the host if the device can access it.
  virtual std::unique_ptr<Allocator> make_memory(MemoryPlan plan) const;
  virtual std::unique_ptr<Allocator> make_host_memory(MemoryPlan plan) const;
  /// The rendezvous of a world with several ranks.
  virtual std::shared_ptr<sharding::Rendezvous> make_rendezvous(
      std::chrono::milliseconds peer_timeout) const;

  /// "on 8 cores, matmuls with AVX2", "on a GPU each: NVIDIA H200".
  virtual std::string description(int world_size, int threads_per_rank) const;
  /// Floating-point operations per second of dense matmuls of `dtype` on all devices together. For
  /// GPUs, the vendor's figure, or 0 if unknown. For CPUs, measured now on the cores of
  /// `threads_here` threads of this process (engine/launch/matmul_rate.h).
  virtual double matmul_peak(DType dtype, int threads_here) const;
};

/// Ranks are bound to memory nodes as node_of_rank decides.
/// Errors   UsageError: SHERD_ISA names instructions that the processor lacks.
std::shared_ptr<const Machine> cpu_machine(std::vector<MemoryNode> nodes = memory_nodes());

struct CudaMachineOptions {
  bool share_device = false;   ///< all ranks on the first GPU, reading each other's memory
  CudaStreamOptions stream{};  ///< for every stream; the rank sets its device
};
/// Ranks are threads that each fill the queues of one GPU and communicate through NCCL.
/// Errors   UsageError: no usable GPU, or fewer GPUs than ranks.
std::shared_ptr<const Machine> cuda_machine(int world_size, const CudaMachineOptions& options);

/// One of several processes, with one rank, on the GPU whose number is the process's local index.
/// Errors   UsageError: no GPU with that number, or ranks that share one.
std::shared_ptr<const Machine> cuda_machine_of_process(
    std::shared_ptr<sharding::Processes> processes, const CudaMachineOptions& options);

/// The GPU of rank `rank`: its own, or the first if shared. UsageError if there are more ranks than
/// GPUs and sharing is off.
int device_of_rank(int rank, int world_size, int num_devices, bool share_device);

/// Floating-point operations per second that the vendor states for dense matmuls of `dtype` (f32:
/// in TF32 if allowed); 0 if unknown. Source: the datasheets of A100, H100 and H200.
double dense_peak(const std::string& gpu_name, DType dtype, bool allow_tf32);

}  // namespace sherd::engine
