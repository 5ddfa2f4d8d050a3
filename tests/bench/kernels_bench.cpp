// Kernels at the sizes of a 124 M parameter model (1024 tokens) against this machine's own bounds,
// measured in the same run: products against one large product through the same library on every
// thread, the rest against a copy of the same bytes. `share` is the part of the bound that is
// reached.
//
//   ./dev bench            all
//   ./dev bench linear     those whose name matches

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>

#include "core/memory.h"
#include "engine/product_rate.h"
#include "engine/system_info.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"
#include "kernels/update.h"

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

double product_rate() {
  static const double rate = engine::measure_product_rate(engine::num_usable_cores());
  return rate;
}

// Bytes per second of a copy (read and written bytes counted) on all threads.
double copy_rate() {
  static const double rate = [] {
    const std::int64_t numel = 32 << 20;
    const Tensor from = tensor("copy.from", numel), to = tensor("copy.to", numel);
    double best = 1e9;
    for (int repeat = 0; repeat < 5; ++repeat) {
      const auto begin = Clock::now();
      kernels::cast(stream(), from, to);
      best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
    }
    return 2.0 * static_cast<double>(from.bytes()) / best;
  }();
  return rate;
}

// Runs `work` for the benchmark's time and says how much of it a second did.
template <class Work>
void measure(benchmark::State& state, const char* unit, double per_call, double bound,
             const Work& work) {
  work();  // warm-up: pages, caches, the library's buffers
  const auto begin = Clock::now();
  for (auto _ : state) work();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const double rate = per_call * static_cast<double>(state.iterations()) / seconds;
  state.counters[unit] = rate * 1e-9;
  state.counters["share"] = rate / bound;
}
template <class Work>
void measure_flops(benchmark::State& state, double flops, const Work& work) {
  measure(state, "GFLOP/s", flops, product_rate(), work);
}
template <class Work>
void measure_bytes(benchmark::State& state, std::int64_t numel, int floats_per_element,
                   const Work& work) {
  measure(state, "GB/s", 4.0 * static_cast<double>(numel) * floats_per_element, copy_rate(), work);
}

void linear(benchmark::State& state) {
  const std::int64_t inputs = state.range(0), outputs = state.range(1);
  const kernels::LinearShape shape{kTokens, inputs, outputs};
  const Tensor x = tensor("x", kTokens * inputs), w = tensor("w", inputs * outputs);
  const Tensor y = tensor("y", kTokens * outputs);
  state.SetLabel(state.range(2) == 0 ? "forward" : state.range(2) == 1 ? "d input" : "d weight");
  measure_flops(state, 2.0 * static_cast<double>(kTokens * inputs * outputs), [&] {
    switch (state.range(2)) {
      case 0:
        kernels::linear_forward(stream(), {shape, x, w, {}, y, {}});
        break;
      case 1:
        kernels::linear_backward_input(stream(), {shape, y, w, x, false, {}});
        break;
      default:
        kernels::linear_backward_weight(stream(), {shape, y, x, w, {}, false, {}});
    }
  });
}
BENCHMARK(linear)
    ->ArgsProduct({{768}, {768, 2304, 3072}, {0, 1, 2}})
    ->Args({3072, 768, 0})
    ->Args({3072, 768, 1})
    ->Args({3072, 768, 2})
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
  const std::int64_t numel = kTokens * 8 * kWidth;
  const kernels::NormShape shape{kernels::NormKind::kLayerNorm, kTokens * 8, kWidth, 1e-5f};
  measure_bytes(state, numel, 2, [&] {
    kernels::norm_forward(stream(), {.shape = shape,
                                     .residual = tensor("residual", numel),
                                     .branch = {},
                                     .branch_dropout = {},
                                     .weight = tensor("norm.w", kWidth),
                                     .bias = tensor("norm.b", kWidth),
                                     .residual_out = {},
                                     .y = tensor("normed", numel),
                                     .mean = tensor("mean", kTokens * 8),
                                     .rstd = tensor("rstd", kTokens * 8)});
  });
}
BENCHMARK(norm_forward)->UseRealTime()->Unit(benchmark::kMillisecond);

void gelu(benchmark::State& state) {
  const std::int64_t numel = kTokens * 4 * kWidth;
  const kernels::ActivationShape shape{kernels::ActivationKind::kGelu, kTokens, 4 * kWidth};
  const Tensor x = tensor("gelu.x", numel), y = tensor("gelu.y", numel);
  const Tensor dx = tensor("gelu.dx", numel);
  state.SetLabel(state.range(0) == 0 ? "forward" : "backward");
  measure_bytes(state, numel, state.range(0) == 0 ? 2 : 3, [&] {
    if (state.range(0) == 0) {
      kernels::activation_forward(stream(), {shape, x, y});
    } else {
      kernels::activation_backward(stream(), {shape, x, y, dx});
    }
  });
}
BENCHMARK(gelu)->Arg(0)->Arg(1)->UseRealTime()->Unit(benchmark::kMillisecond);

void adamw_update(benchmark::State& state) {
  const std::int64_t numel = 16 << 20;
  std::vector<kernels::UpdateSegment> segments;
  for (std::int64_t first = 0; first < numel; first += 65536) {
    segments.push_back({first, 65536, 0.1f});
  }
  measure_bytes(state, numel, 7, [&] {
    kernels::adam_update(stream(), {.common = {.parameter = tensor("p", numel),
                                               .gradient = tensor("g", numel),
                                               .segments = segments,
                                               .lr = 1e-4f},
                                    .exp_avg = tensor("m", numel),
                                    .exp_avg_sq = tensor("v", numel)});
  });
}
BENCHMARK(adamw_update)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sherd

BENCHMARK_MAIN();
