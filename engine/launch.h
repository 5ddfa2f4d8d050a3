/// A process becomes ranks: one thread each, with its streams, communicators and memory.
///
/// Ranks share the machine's cores: cores / ranks compute threads each, at least one. If one rank
/// throws, it aborts its communicators with the reason, so that the others stop instead of waiting;
/// `run_ranks` then rethrows the first error.
#pragma once

#include <chrono>
#include <functional>

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
  std::chrono::milliseconds peer_timeout = sharding::kDefaultPeerTimeout;

  int compute_threads() const;
};

/// Runs `body` on every rank, each on its own thread, and returns when all have ended. `body`
/// builds what it needs and does its work inside `rank.guard`.
void run_ranks(const LaunchOptions& options, const std::function<void(sharding::Rank&)>& body);

}  // namespace sherd::engine
