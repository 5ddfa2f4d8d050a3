/// What ranks run on, behind one interface: this machine's processor or its GPUs. Tests have machines of
/// their own: one whose memory is apart, one with late streams.
///
/// One machine serves all ranks of a launch. Each rank's thread calls `bind_rank` first; what it
/// makes then belongs to its device.
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

/// What a memory plan must know of a machine, whether or not it is this one.
struct DeviceTraits {
  DeviceKind kind = DeviceKind::kCpu;
  bool separate_memory = false;  ///< its memory isn't the host's: ranks have a plan for either
  std::int64_t staging_bytes =
      0;                     ///< of each rank's reductions, where ranks are in several processes
  int threads_per_rank = 0;  ///< if the machine decides; 0: as the recipe says
};

/// The ranks that are threads of this process, and how many share its host's cores and memory.
struct RanksHere {
  int first = 0, count = 1, on_host = 1;
};

/// The machine itself, unless a class says otherwise: ranks are threads on the processor's cores.
class Machine {
 public:
  virtual ~Machine() = default;
  virtual DeviceTraits traits() const { return {}; }

  virtual RanksHere ranks_here(int world_size) const { return {0, world_size, world_size}; }
  /// All processes that have ranks of this world; null: this one alone.
  virtual sharding::Processes* processes() const { return nullptr; }

  /// The calling thread is rank r's from now on, of a world of that size.
  virtual void bind_rank(int /*r*/, int /*world_size*/) const {}
  /// By `options.purpose`; of the bound rank's device.
  virtual std::unique_ptr<Stream> make_stream(StreamOptions options) const;
  /// Memory for a plan: the bound rank's device's, and the host's that such a device reaches.
  virtual std::unique_ptr<Allocator> make_memory(MemoryPlan plan) const;
  virtual std::unique_ptr<Allocator> make_host_memory(MemoryPlan plan) const;
  /// Where the ranks of a world of more than one meet.
  virtual std::shared_ptr<sharding::Rendezvous> make_rendezvous(
      std::chrono::milliseconds peer_timeout) const;

  /// "on 8 cores, matmuls with AVX2", "on a GPU each: NVIDIA H200".
  virtual std::string description(int world_size, int threads_per_rank) const;
  /// Floating-point operations per second of dense matmuls of `dtype` on all devices together: what a GPU's maker
  /// states, 0 where that isn't known; what this machine's cores reach now (engine/launch/matmul_rate.h), of as many as
  /// `threads_here` threads of this process have.
  virtual double matmul_peak(DType dtype, int threads_here) const;
};

/// Ranks are bound to memory nodes where node_of_rank says so.
/// Errors   UsageError: SHERD_ISA names instructions that the processor lacks.
std::shared_ptr<const Machine> cpu_machine(std::vector<MemoryNode> nodes = memory_nodes());

struct CudaMachineOptions {
  bool share_device = false;   ///< all ranks on the first GPU, where they read each other's memory
  CudaStreamOptions stream{};  ///< of every stream; its device is set by the rank
};
/// Ranks are threads that fill the queues of a GPU each and talk through NCCL.
/// Errors   UsageError: no GPU that can be used, or fewer than ranks.
std::shared_ptr<const Machine> cuda_machine(int world_size, const CudaMachineOptions& options);

/// One of several processes, with one rank: on the GPU with the process's number on its machine.
/// Errors   UsageError: fewer GPUs than that, or ranks that share one.
std::shared_ptr<const Machine> cuda_machine_of_process(
    std::shared_ptr<sharding::Processes> processes, const CudaMachineOptions& options);

/// The GPU of rank `rank`: its own, or, if shared, the first. UsageError if there are more
/// ranks than GPUs and they aren't to be shared.
int device_of_rank(int rank, int world_size, int num_devices, bool share_device);

/// Floating-point operations per second that the maker states for dense matmuls of `dtype`
/// (f32: in TF32 if allowed), 0 where we don't know. Source: the datasheets of A100, H100 and H200.
double dense_peak(const std::string& gpu_name, DType dtype, bool allow_tf32);

}  // namespace sherd::engine
