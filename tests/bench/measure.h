/// What kernels are measured with, and the bounds that they are measured against.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <numeric>
#include <string>

#include "core/memory.h"
#include "core/thread_team.h"
#include "engine/launch/system_info.h"
#include "kernels/cpu/matmul/tile.h"
#include "kernels/isa.h"
#include "kernels/pointwise.h"
#include "tests/bench/openblas.h"

namespace sherd {

inline Stream& stream() {
  static const auto stream = make_cpu_compute_stream({.name = "bench",
                                                      .rank = 0,
                                                      .num_threads = engine::num_usable_cores(),
                                                      .may_spin = true,
                                                      .hook = {},
                                                      .trace = nullptr});
  return *stream;
}

// Buffers by name and size, filled with something that is no special case.
inline Tensor tensor(const std::string& name, std::int64_t numel, DType dtype = DType::kF32) {
  static HeapAllocator memory;
  static std::map<std::string, Buffer> buffers;
  const std::string key = fmt::format("{}/{}/{}", name, numel, name_of(dtype));
  auto it = buffers.find(key);
  if (it == buffers.end()) {
    it = buffers.emplace(key, memory.acquire({key, Category::kWorkspace, dtype, numel})).first;
    if (dtype == DType::kF32) {
      kernels::fill_normal(stream(), it->second, {1, 2, 3}, 0, 0.0f, 0.1f);
    } else if (size_of(dtype) == 2) {
      kernels::cast(stream(), tensor(name, numel), it->second);
    }
  }
  return it->second;
}

// The best of a few calls, in seconds.
template <class Work>
double best_seconds(int repeats, const Work& work) {
  double best = 1e9;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

// OpenBLAS: every thread multiplies matrices of its own.
inline double openblas_rate() {
  constexpr std::int64_t kSize = 1024;
  const int threads = engine::num_usable_cores();
  const Tensor a = tensor("rate.a", threads * kSize * kSize);
  const Tensor b = tensor("rate.b", threads * kSize * kSize);
  const Tensor c = tensor("rate.c", threads * kSize * kSize);
  const double seconds = best_seconds(3, [&] {
    stream().team().parallel_for(threads, [&](std::int64_t task, int) {
      const std::int64_t at = task * kSize * kSize;
      bench::gemm({.rows = kSize,
                   .columns = kSize,
                   .depth = kSize,
                   .a = {a.as<float>() + at, kSize},
                   .b = {b.as<float>() + at, kSize},
                   .c = c.as<float>() + at,
                   .c_stride = kSize});
    });
  });
  return 2.0 * threads * kSize * kSize * kSize / seconds;
}

// What all threads' tiles reach in their first caches.
inline double rate_of_tiles(DType dtype) {
  const int threads = engine::num_usable_cores();
  std::vector<double> rates(static_cast<std::size_t>(threads));
  stream().team().parallel_for(threads, [&](std::int64_t task, int) {
    rates[static_cast<std::size_t>(task)] = kernels::cpu::tile_rate(dtype, kernels::isa());
  });
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

// Bytes per second over two buffers, a large part of which each thread works on.
template <class Part>
double memory_rate(const Part& part) {
  const std::int64_t numel = 32 << 20;
  const Tensor from = tensor("copy.from", numel), to = tensor("copy.to", numel);
  const std::int64_t threads = engine::num_usable_cores(), own = numel / threads;
  return 2.0 * static_cast<double>(from.bytes()) / best_seconds(3, [&] {
           stream().team().parallel_for(threads, [&](std::int64_t task, int) {
             part(from.as<float>() + task * own, to.as<float>() + task * own, own);
           });
         });
}
// A copy, by the library's means or by plain loads and stores.
inline double copy_rate() {
  const double library = memory_rate([](const float* from, float* to, std::int64_t count) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
  });
  return std::max(library, memory_rate([](const float* from, float* to, std::int64_t count) {
#pragma omp simd
                    for (std::int64_t i = 0; i < count; ++i) to[i] = 0.5f * from[i];
                  }));
}
inline double in_place_rate() {
  return memory_rate([](const float*, float* to, std::int64_t count) {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) to[i] = 0.999f * to[i];
  });
}

// Runs `work` for the benchmark's time; its best call counts, as the bound's does.
template <class Bound, class Work>
void measure(benchmark::State& state, const char* unit, double per_call, const Bound& bound,
             const Work& work) {
  work();  // warm-up: pages, caches, the library's buffers
  const double before = bound();
  double best = 1e9;
  for (auto _ : state) best = std::min(best, best_seconds(1, work));
  state.counters[unit] = per_call / best * 1e-9;
  state.counters["share"] = per_call / best / std::max(before, bound());
}
template <class Work>
void measure_flops(benchmark::State& state, DType dtype, double flops, const Work& work) {
  measure(
      state, "GFLOP/s", flops, [dtype] { return rate_of_tiles(dtype); }, work);
}
template <class Work>
void measure_bytes(benchmark::State& state, std::int64_t numel, int floats_per_element,
                   const Work& work, double (*bound)() = copy_rate) {
  measure(state, "GB/s", 4.0 * static_cast<double>(numel) * floats_per_element, bound, work);
}

}  // namespace sherd
