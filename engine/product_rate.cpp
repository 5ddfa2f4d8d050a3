#include "engine/product_rate.h"

#include <algorithm>
#include <chrono>

#include "core/memory.h"
#include "kernels/linear.h"
#include "kernels/pointwise.h"

namespace sherd::engine {

double measure_product_rate(int num_threads) {
  constexpr std::int64_t kSize = 1024;
  constexpr int kRepeats = 5;
  HeapAllocator memory;
  const auto stream = make_cpu_compute_stream({.name = "product rate",
                                               .rank = 0,
                                               .num_threads = num_threads,
                                               .may_spin = true,
                                               .hook = {},
                                               .trace = nullptr});
  const auto matrix = [&](const char* name) {
    Buffer buffer = memory.acquire({name, Category::kWorkspace, DType::kF32, kSize * kSize, kInit});
    kernels::fill_constant(*stream, buffer, 0.5f);
    return buffer;
  };
  const Buffer x = matrix("x"), w = matrix("w"), y = matrix("y");
  double best_seconds = 1e9;
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    const auto begin = Clock::now();
    kernels::linear_forward(*stream, {{kSize, kSize, kSize}, x, w, {}, y, {}});
    const std::chrono::duration<double> seconds = Clock::now() - begin;
    if (repeat > 0) best_seconds = std::min(best_seconds, seconds.count());
  }
  return 2.0 * kSize * kSize * kSize / best_seconds;
}

}  // namespace sherd::engine
