// Kernels at the sizes of a 124 M parameter model (1024 tokens) against this machine's own bounds:
// products against OpenBLAS on large matrices, a thread each; what writes elsewhere than it reads
// against a copy, what works in place against scaling a buffer in place (a copy's target is first
// read into the caches, which nobody counts). All threads, buffers larger than the caches, read and
// written bytes counted. `share` is the part of the bound that is reached. A bound is measured
// right before and after what is compared with it, and the better value counts: clocks and
// neighbours change.
//
//   ./dev bench kernels            all
//   ./dev bench kernels linear     those whose name matches

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>

#include "core/memory.h"
#include "core/thread_team.h"
#include "engine/system_info.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/cpu/gemm.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"
#include "kernels/rotary.h"
#include "kernels/token.h"
#include "kernels/update.h"
#include "sharding/comm/threads.h"

namespace sherd {
namespace {

constexpr std::int64_t kTokens = 1024;
constexpr std::int64_t kWidth = 768;

Stream& stream() {
  static const auto stream = make_cpu_compute_stream({.name = "bench",
                                                      .rank = 0,
                                                      .num_threads = engine::num_usable_cores(),
                                                      .may_spin = true,
                                                      .hook = {},
                                                      .trace = nullptr});
  return *stream;
}

// Buffers by name and size, filled with something that is no special case.
Tensor tensor(const std::string& name, std::int64_t numel, DType dtype = DType::kF32) {
  static HeapAllocator memory;
  static std::map<std::string, Buffer> buffers;
  const std::string key = fmt::format("{}/{}/{}", name, numel, name_of(dtype));
  auto it = buffers.find(key);
  if (it == buffers.end()) {
    it = buffers.emplace(key, memory.acquire({key, Category::kWorkspace, dtype, numel})).first;
    if (dtype == DType::kF32) kernels::fill_normal(stream(), it->second, {1, 2, 3}, 0, 0.0f, 0.1f);
  }
  return it->second;
}

// The best of a few calls, in seconds.
template <class Work>
double best_seconds(int repeats, const Work& work) {
  double best = 1e9;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto begin = Clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return best;
}

// OpenBLAS itself: every thread multiplies matrices of its own.
double product_rate() {
  constexpr std::int64_t kSize = 1024;
  const int threads = engine::num_usable_cores();
  const Tensor a = tensor("rate.a", threads * kSize * kSize);
  const Tensor b = tensor("rate.b", threads * kSize * kSize);
  const Tensor c = tensor("rate.c", threads * kSize * kSize);
  const double seconds = best_seconds(3, [&] {
    stream().team().parallel_for(threads, [&](std::int64_t task, int) {
      const std::int64_t at = task * kSize * kSize;
      kernels::cpu::gemm({.rows = kSize,
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
double copy_rate() {
  const double library = memory_rate([](const float* from, float* to, std::int64_t count) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
  });
  return std::max(library, memory_rate([](const float* from, float* to, std::int64_t count) {
#pragma omp simd
                    for (std::int64_t i = 0; i < count; ++i) to[i] = 0.5f * from[i];
                  }));
}
double in_place_rate() {
  return memory_rate([](const float*, float* to, std::int64_t count) {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) to[i] = 0.999f * to[i];
  });
}

// Runs `work` for the benchmark's time; its best call counts, as the bound's does.
template <class Work>
void measure(benchmark::State& state, const char* unit, double per_call, double (*bound)(),
             const Work& work) {
  work();  // warm-up: pages, caches, the library's buffers
  const double before = bound();
  double best = 1e9;
  for (auto _ : state) best = std::min(best, best_seconds(1, work));
  state.counters[unit] = per_call / best * 1e-9;
  state.counters["share"] = per_call / best / std::max(before, bound());
}
template <class Work>
void measure_flops(benchmark::State& state, double flops, const Work& work) {
  measure(state, "GFLOP/s", flops, product_rate, work);
}
template <class Work>
void measure_bytes(benchmark::State& state, std::int64_t numel, int floats_per_element,
                   const Work& work, double (*bound)() = copy_rate) {
  measure(state, "GB/s", 4.0 * static_cast<double>(numel) * floats_per_element, bound, work);
}

void linear(benchmark::State& state) {
  const std::int64_t inputs = state.range(0), outputs = state.range(1);
  // The head is computed in two chunks of tokens.
  const std::int64_t tokens = outputs == 50304 ? kTokens / 2 : kTokens;
  const kernels::LinearShape shape{tokens, inputs, outputs};
  const Tensor x = tensor("x", tokens * inputs), w = tensor("w", inputs * outputs);
  const Tensor y = tensor("y", tokens * outputs);
  const Tensor workspace =
      tensor("linear.workspace",
             kernels::linear_workspace_bytes(shape, DType::kF32, DType::kF32,
                                             {DeviceKind::kCpu, engine::num_usable_cores()}),
             DType::kU8);
  state.SetLabel(state.range(2) == 0 ? "forward" : state.range(2) == 1 ? "d input" : "d weight");
  measure_flops(state, 2.0 * static_cast<double>(tokens * inputs * outputs), [&] {
    switch (state.range(2)) {
      case 0:
        kernels::linear_forward(stream(), {shape, x, w, {}, y, workspace});
        break;
      case 1:
        kernels::linear_backward_input(stream(), {shape, y, w, x, false, workspace});
        break;
      default:
        kernels::linear_backward_weight(stream(), {shape, y, x, w, {}, false, workspace});
    }
  });
}
BENCHMARK(linear)
    ->ArgsProduct({{768}, {768, 2304, 3072}, {0, 1, 2}})
    ->Args({3072, 768, 0})
    ->Args({3072, 768, 1})
    ->Args({3072, 768, 2})
    ->ArgsProduct({{768}, {50304}, {0, 1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void attention(benchmark::State& state) {
  const kernels::AttentionShape shape{1, kTokens, 12, 12, 64};
  const Tensor qkv = tensor("qkv", kTokens * shape.packed_width());
  const Tensor out = tensor("out", kTokens * kWidth), dout = tensor("dout", kTokens * kWidth);
  const Tensor dqkv = tensor("dqkv", kTokens * shape.packed_width());
  const Tensor lse = tensor("lse", kTokens * 12);
  const Tensor workspace =
      tensor("attention.workspace",
             kernels::attention_workspace_bytes(shape, DType::kF32,
                                                {DeviceKind::kCpu, engine::num_usable_cores()}),
             DType::kU8);
  kernels::attention_forward(stream(), {shape, qkv, {}, out, lse, workspace});
  const bool backward = state.range(0) == 1;
  state.SetLabel(backward ? "backward" : "forward");
  // Causal: half of S x S; two products forward, five backward.
  measure_flops(state, (backward ? 5.0 : 2.0) * kTokens * kTokens * kWidth, [&] {
    if (backward) {
      kernels::attention_backward(stream(), {shape, qkv, out, lse, dout, {}, dqkv, workspace});
    } else {
      kernels::attention_forward(stream(), {shape, qkv, {}, out, lse, workspace});
    }
  });
}
BENCHMARK(attention)->Arg(0)->Arg(1)->UseRealTime()->Unit(benchmark::kMillisecond);

void norm_forward(benchmark::State& state) {
  const std::int64_t numel = kTokens * 32 * kWidth;
  const kernels::NormShape shape{kernels::NormKind::kLayerNorm, kTokens * 32, kWidth, 1e-5f};
  measure_bytes(state, numel, 2, [&] {
    kernels::norm_forward(stream(), {.shape = shape,
                                     .residual = tensor("residual", numel),
                                     .branch = {},
                                     .branch_dropout = {},
                                     .weight = tensor("norm.w", kWidth),
                                     .bias = tensor("norm.b", kWidth),
                                     .residual_out = {},
                                     .y = tensor("normed", numel),
                                     .mean = tensor("mean", kTokens * 32),
                                     .rstd = tensor("rstd", kTokens * 32)});
  });
}
BENCHMARK(norm_forward)->UseRealTime()->Unit(benchmark::kMillisecond);

void norm_backward(benchmark::State& state) {
  const std::int64_t numel = kTokens * 32 * kWidth;
  const kernels::NormShape shape{kernels::NormKind::kLayerNorm, kTokens * 32, kWidth, 1e-5f};
  // Reads r, dy and the gradient from after it, writes the gradient of r.
  measure_bytes(state, numel, 4, [&] {
    kernels::norm_backward(
        stream(), {.shape = shape,
                   .residual = tensor("residual", numel),
                   .mean = tensor("mean", kTokens * 32),
                   .rstd = tensor("rstd", kTokens * 32),
                   .weight = tensor("norm.w", kWidth),
                   .dy = tensor("normed", numel),
                   .d_residual_out = tensor("d_residual", numel),
                   .branch_dropout = {},
                   .d_residual_in = tensor("d_residual", numel),
                   .d_branch = {},
                   .dweight = tensor("norm.dw", kWidth),
                   .dbias = tensor("norm.db", kWidth),
                   .workspace = tensor("norm.workspace",
                                       kernels::norm_backward_workspace_bytes(shape), DType::kU8)});
  });
}
BENCHMARK(norm_backward)->UseRealTime()->Unit(benchmark::kMillisecond);

void activation(benchmark::State& state, kernels::ActivationKind kind) {
  const int inputs = kind == kernels::ActivationKind::kSwiGlu ? 2 : 1;
  const kernels::ActivationShape shape{kind, kTokens * 4, 4 * kWidth};
  const std::int64_t numel = shape.tokens * shape.width;
  const Tensor x = tensor("activation.x", inputs * numel), y = tensor("activation.y", numel);
  const Tensor dx = tensor("activation.dx", inputs * numel);
  state.SetLabel(state.range(0) == 0 ? "forward" : "backward");
  measure_bytes(state, numel, state.range(0) == 0 ? inputs + 1 : 2 * inputs + 1, [&] {
    if (state.range(0) == 0) {
      kernels::activation_forward(stream(), {shape, x, y});
    } else {
      kernels::activation_backward(stream(), {shape, x, y, dx});
    }
  });
}
void gelu(benchmark::State& state) {
  activation(state, kernels::ActivationKind::kGelu);
}
void swiglu(benchmark::State& state) {
  activation(state, kernels::ActivationKind::kSwiGlu);
}
BENCHMARK(gelu)->Arg(0)->Arg(1)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(swiglu)->Arg(0)->Arg(1)->UseRealTime()->Unit(benchmark::kMillisecond);

void rotary(benchmark::State& state) {
  const std::int64_t tokens = 8 * kTokens, heads = 12, width = 64;
  const Tensor qkv = tensor("rotary.qkv", tokens * 3 * heads * width);
  const Tensor table = tensor("rotary.table", kTokens * width);
  kernels::rotary_table(stream(), table, kTokens, width, 10000.0);
  // Two thirds of the packed rows are read and written.
  measure_bytes(
      state, tokens * 2 * heads * width, 2,
      [&] {
        kernels::rotary(stream(), {8, kTokens, heads, heads, width, table, qkv});
      },
      in_place_rate);
}
BENCHMARK(rotary)->UseRealTime()->Unit(benchmark::kMillisecond);

void residual_add(benchmark::State& state) {
  const std::int64_t numel = 16 << 20;
  measure_bytes(state, numel, 3, [&] {
    kernels::residual_add(stream(), tensor("p", numel), tensor("g", numel), {}, tensor("m", numel));
  });
}
BENCHMARK(residual_add)->UseRealTime()->Unit(benchmark::kMillisecond);

void cross_entropy(benchmark::State& state) {
  const std::int64_t tokens = 320, vocabulary = 50304;
  const Tensor logits = tensor("logits", tokens * vocabulary);
  const Tensor targets = tensor("targets", tokens, DType::kI32);
  // A row of logits fits into the caches: it need be read and written only once.
  measure_bytes(
      state, tokens * vocabulary, 2,
      [&] {
        kernels::cross_entropy(stream(), {.tokens = tokens,
                                          .vocab_size = vocabulary,
                                          .logits = logits,
                                          .targets = targets,
                                          .losses = tensor("losses", tokens)});
      },
      in_place_rate);
}
BENCHMARK(cross_entropy)->UseRealTime()->Unit(benchmark::kMillisecond);

void sum_of_squares(benchmark::State& state) {
  const std::int64_t numel = 16 << 20;
  const Tensor workspace =
      tensor("squares.workspace", kernels::sum_of_squares_workspace_bytes(numel) / 8, DType::kF64);
  const Tensor out = tensor("squares", 1, DType::kF64);
  measure_bytes(
      state, numel, 1,
      [&] { kernels::sum_of_squares(stream(), tensor("g", numel), out, workspace); },
      in_place_rate);
}
BENCHMARK(sum_of_squares)->UseRealTime()->Unit(benchmark::kMillisecond);

void adamw_update(benchmark::State& state) {
  const std::int64_t numel = 16 << 20;
  std::vector<kernels::UpdateSegment> segments;
  for (std::int64_t first = 0; first < numel; first += 65536) {
    segments.push_back({first, 65536, 0.1f});
  }
  measure_bytes(
      state, numel, 7,
      [&] {
        kernels::adam_update(stream(), {.common = {.parameter = tensor("p", numel),
                                                   .gradient = tensor("g", numel),
                                                   .segments = segments,
                                                   .lr = 1e-4f},
                                        .exp_avg = tensor("m", numel),
                                        .exp_avg_sq = tensor("v", numel)});
      },
      in_place_rate);
}
BENCHMARK(adamw_update)->UseRealTime()->Unit(benchmark::kMillisecond);

// Thread ranks, one per core, exchange a unit as large as they make it together.
struct Ranks {
  Ranks() : communicators(sharding::make_thread_communicators(engine::num_usable_cores())) {
    for (int r = 0; r < size(); ++r) {
      streams.push_back(make_cpu_worker_stream({.name = "comm", .rank = r, .hook = {}}));
    }
  }
  int size() const { return static_cast<int>(communicators.size()); }
  template <class Call>
  void all(const Call& call) {
    for (int r = 0; r < size(); ++r) call(r, *communicators[r], *streams[r]);
    for (auto& stream : streams) stream->synchronize();
  }

  std::vector<std::unique_ptr<sharding::Communicator>> communicators;
  std::vector<std::unique_ptr<Stream>> streams;
};

void all_gather(benchmark::State& state) {
  Ranks ranks;
  const std::int64_t numel = std::int64_t{8 << 20} * ranks.size();
  // Each rank reads and writes the slices of the others.
  const auto slices = static_cast<double>(ranks.size() * (ranks.size() - 1));
  measure(state, "GB/s", 2.0 * slices * 4.0 * (8 << 20), copy_rate, [&] {
    ranks.all([&](int r, sharding::Communicator& communicator, Stream& stream) {
      communicator.all_gather(stream, "unit", tensor("full." + std::to_string(r), numel));
    });
  });
}
BENCHMARK(all_gather)->UseRealTime()->Unit(benchmark::kMillisecond);

void reduce_scatter(benchmark::State& state) {
  Ranks ranks;
  const std::int64_t slice = 8 << 20, numel = slice * ranks.size();
  // Each rank reads its slice of every rank and writes the sum.
  const auto slices = static_cast<double>(ranks.size() * (ranks.size() + 1));
  measure(state, "GB/s", slices * 4.0 * static_cast<double>(slice), copy_rate, [&] {
    ranks.all([&](int r, sharding::Communicator& communicator, Stream& stream) {
      communicator.reduce_scatter(stream, "unit", tensor("full." + std::to_string(r), numel),
                                  tensor("sum." + std::to_string(r), slice));
    });
  });
}
BENCHMARK(reduce_scatter)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sherd

BENCHMARK_MAIN();
