/// Which thread processes which elements. The grid's shape and every thread's path through it
/// depend only on the work. Tests on the host walk through all threads and check that each element
/// is processed once.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace sherd::kernels::device_common {

inline constexpr int kThreads = 256;  ///< per block, by default

inline constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Blocks for a flat buffer in packs of `pack`: enough to fill any GPU several times; a thread then
/// takes several packs, `blocks * kThreads` apart.
inline constexpr std::int64_t flat_blocks(std::int64_t numel, int pack) {
  constexpr std::int64_t kMost = 8192;
  const std::int64_t wanted = ceil_div(numel / pack, kThreads);
  return wanted < 1 ? 1 : wanted > kMost ? kMost : wanted;
}

/// Calls body.apply<N>(first) for this thread's packs; a remainder of less than a pack is processed
/// one by one, by the first threads.
template <int N, class Body>
SHERD_HOST_DEVICE void walk_flat(std::int64_t numel, std::int64_t thread, std::int64_t num_threads,
                                 const Body& body) {
  const std::int64_t packs = numel / N;
  for (std::int64_t i = thread; i < packs; i += num_threads) body.template apply<N>(i * N);
  if constexpr (N > 1) {
    const std::int64_t left = packs * N + thread;
    if (left < numel) body.template apply<1>(left);
  }
}

/// Threads of a block that processes one row of `packs` packs: whole warps, up to 512.
inline constexpr int row_threads(std::int64_t packs) {
  const std::int64_t warps = ceil_div(packs, 32);
  return static_cast<int>(warps < 1 ? 32 : warps > 16 ? 512 : warps * 32);
}

}  // namespace sherd::kernels::device_common
