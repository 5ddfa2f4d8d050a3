/// A process becomes ranks: one thread each, with its streams, communicators and memory.
///
/// Ranks share the machine's cores: cores / ranks compute threads each, at least one. If one rank
/// throws, it aborts its communicators with the reason, so that the others stop instead of waiting;
/// `run_ranks` then rethrows the first error.
///
/// On GPUs a rank is the thread that fills the queues of one GPU. Each has a GPU of its own and
/// they talk through NCCL, or, if asked, all share the first GPU and read each other's memory
/// there.
#pragma once

#include <chrono>
#include <functional>

#include "core/cuda_device.h"
#include "core/trace.h"
#include "sharding/comm/threads.h"
#include "sharding/rank.h"

namespace sherd::engine {

struct LaunchOptions {
  int world_size = 1;
  int threads_per_rank = 0;  ///< 0: num_usable_cores() / world_size, at least 1
  BoundaryHook hook;         ///< on every stream of every rank; for tests
  Trace* trace = nullptr;
  /// Makes the memory of rank r, on that rank's thread. Empty: from the heap, without a plan.
  std::function<std::unique_ptr<Allocator>(int r)> memory;
  /// The same for host memory that the rank's device reaches, where its memory isn't the host's.
  std::function<std::unique_ptr<Allocator>(int r)> host_memory;
  std::chrono::milliseconds peer_timeout = sharding::kDefaultPeerTimeout;

  DeviceKind device = DeviceKind::kCpu;
  bool share_device = false;  ///< several ranks on one GPU: --share-device
  CudaStreamOptions cuda;     ///< of every stream; its device is set by the rank
  /// Streams in place of the device's own; for tests.
  std::function<std::unique_ptr<Stream>(const StreamOptions& options)> make_stream;

  int compute_threads() const;
};

/// The GPU of rank `rank`: its own, or, if shared, the first. UsageError if there are more
/// ranks than GPUs and they aren't to be shared.
int device_of_rank(int rank, int world_size, int num_devices, bool share_device);

/// Runs `body` on every rank, each on its own thread, and returns when all have ended. `body`
/// builds what it needs and does its work inside `rank.guard`.
void run_ranks(const LaunchOptions& options, const std::function<void(sharding::Rank&)>& body);

}  // namespace sherd::engine
