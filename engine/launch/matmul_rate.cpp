#include "engine/launch/matmul_rate.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <numeric>
#include <vector>

#include "core/thread_team.h"
#include "engine/launch/rank_memory.h"
#include "kernels/linear.h"
#include "kernels/pointwise.h"

namespace sherd::engine {
namespace {

struct Operands {
  Tensor x, w, y, workspace;
  Tensor numbers;  ///< f32, as large as x: what x and w are rounded from
};

// The best round counts; the first one is warm-up.
double best_rate(Stream& stream, std::int64_t size, int matmuls_per_round, const Operands& on) {
  constexpr int kRounds = 5;
  // Random numbers: a GPU multiplies constants faster, because fewer bits change.
  for (const Tensor& factor : {on.x, on.w}) {
    kernels::fill_normal(stream, on.numbers, {1, 0, 0}, 0, 0.0f, 1.0f);
    kernels::cast(stream, on.numbers, factor);
  }
  double best_seconds = 1e9;
  for (int round = 0; round <= kRounds; ++round) {
    stream.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < matmuls_per_round; ++i) {
      kernels::linear_forward(stream, {.shape = {size, size, size},
                                       .x = on.x,
                                       .w = on.w,
                                       .bias = {},
                                       .y = on.y,
                                       .workspace = on.workspace});
    }
    stream.synchronize();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (round > 0) best_seconds = std::min(best_seconds, seconds.count());
  }
  const auto n = static_cast<double>(size);
  return matmuls_per_round * 2.0 * n * n * n / best_seconds;
}

std::vector<BufferSpec> operand_buffers(std::int64_t size, DType dtype) {
  std::vector<BufferSpec> buffers;
  for (const char* name : {"x", "w", "y"}) {
    buffers.push_back({name, Category::kWorkspace, dtype, size * size, kInit});
  }
  return buffers;
}

}  // namespace

double measure_matmul_peak(DType dtype, int num_threads) {
  // A core that was idle needs some milliseconds to reach its clock rate.
  constexpr std::chrono::milliseconds kLeast{20};
  using Clock = std::chrono::steady_clock;
  std::vector<double> rates(static_cast<std::size_t>(num_threads));
  ThreadTeam team(num_threads, /*may_spin=*/true);
  std::barrier begin(num_threads);  // so that no thread measures twice, or alone
  double best = 0.0;
  for (const auto end = Clock::now() + kLeast; Clock::now() < end;) {
    team.parallel_for(num_threads, [&](std::int64_t task, int) {
      begin.arrive_and_wait();
      rates[static_cast<std::size_t>(task)] = kernels::matmul_rate_of_a_thread(dtype);
    });
    best = std::max(best, std::accumulate(rates.begin(), rates.end(), 0.0));
  }
  return best;
}

double measure_matmul_rate_of_gpu(DType dtype, const CudaStreamOptions& options) {
  constexpr std::int64_t kSize = 8192;
  use_cuda_device(options.device);
  std::vector<BufferSpec> buffers = operand_buffers(kSize, dtype);
  const std::int64_t workspace_bytes = kernels::linear_workspace_bytes(
      {kSize, kSize, kSize}, dtype, dtype,
      {.kind = DeviceKind::kCuda, .num_threads = 1, .deterministic = options.deterministic});
  buffers.push_back({"workspace", Category::kWorkspace, DType::kU8, workspace_bytes, kInit});
  buffers.push_back({"numbers", Category::kWorkspace, DType::kF32, kSize * kSize, kInit});
  const auto memory = cuda_arena(MemoryPlan(buffers));
  const Buffer x = memory->acquire(buffers[0]), w = memory->acquire(buffers[1]),
               y = memory->acquire(buffers[2]), workspace = memory->acquire(buffers[3]),
               numbers = memory->acquire(buffers[4]);
  const auto stream = make_cuda_stream({.name = "matmul rate",
                                        .rank = 0,
                                        .num_threads = 1,
                                        .may_spin = false,
                                        .hook = {},
                                        .trace = nullptr},
                                       options);
  const double rate = best_rate(*stream, kSize, 10, {x, w, y, workspace, numbers});
  stream->synchronize();
  return rate;
}

}  // namespace sherd::engine
