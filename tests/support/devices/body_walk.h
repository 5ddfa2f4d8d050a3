/// Runs a device body on the host like a grid: every thread of every block, in packs of N.
#pragma once

#include "kernels/device_common/walk.h"

namespace sherd::test {

template <int N, class Body>
void run_flat(std::int64_t numel, const Body& body) {
  const std::int64_t threads =
      kernels::device_common::flat_blocks(numel, N) * kernels::device_common::kThreads;
  for (std::int64_t thread = 0; thread < threads; ++thread) {
    kernels::device_common::walk_flat<N>(numel, thread, threads, body);
  }
}

}  // namespace sherd::test
