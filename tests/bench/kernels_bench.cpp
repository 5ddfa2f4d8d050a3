// Kernels at the sizes of a 124 M parameter model (1024 tokens) against this machine's own bounds.
// Matmuls, of each type: against the tiles of the instruction set in use on panels in the first cache
// (kernels/cpu/matmul/tile.h), and against OpenBLAS on large matrices, a thread each. What writes
// elsewhere than it reads against a copy, what works in place against scaling a buffer in place (a
// copy's target is first read into the caches, which isn't counted). All threads, buffers larger than
// the caches, read and written bytes counted. `share` is the part of the bound that is reached. A bound
// is measured right before and after what is compared with it, and the better value counts: clocks and
// neighbours change.
//
//   ./dev bench kernels            all, on the instruction set that a run would choose
//   ./dev bench kernels linear     those whose name matches
//   SHERD_ISA=avx2 ./dev bench kernels linear

#include <numeric>

#include "core/exact_sum.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"
#include "kernels/rotary.h"
#include "kernels/token.h"
#include "kernels/update.h"
#include "tests/bench/measure.h"

namespace sherd {
namespace {

constexpr std::int64_t kTokens = 1024;
constexpr std::int64_t kWidth = 768;

void linear(benchmark::State& state) {
  const std::int64_t inputs = state.range(0), outputs = state.range(1);
  // The head is computed in two chunks of tokens.
  const std::int64_t tokens = outputs == 50304 ? kTokens / 2 : kTokens;
  const auto dtype = static_cast<DType>(state.range(3));
  const kernels::LinearShape shape{tokens, inputs, outputs};
  const Tensor x = tensor("x", tokens * inputs, dtype), w = tensor("w", inputs * outputs, dtype);
  const Tensor y = tensor("y", tokens * outputs, dtype), dw = tensor("w", inputs * outputs);
  const Tensor workspace =
      tensor("linear.workspace",
             kernels::linear_workspace_bytes(shape, dtype, DType::kF32,
                                             {DeviceKind::kCpu, engine::num_usable_cores()}),
             DType::kU8);
  state.SetLabel(fmt::format("{} {} {}", name_of(kernels::isa()), name_of(dtype),
                             state.range(2) == 0   ? "forward"
                             : state.range(2) == 1 ? "d input"
                                                   : "d weight"));
  measure_flops(state, dtype, 2.0 * static_cast<double>(tokens * inputs * outputs), [&] {
    switch (state.range(2)) {
      case 0:
        kernels::linear_forward(stream(), {shape, x, w, {}, y, workspace});
        break;
      case 1:
        kernels::linear_backward_input(stream(), {shape, y, w, x, false, workspace});
        break;
      default:
        kernels::linear_backward_weight(stream(), {shape, y, x, dw, {}, false, workspace});
    }
  });
}
void linear_of_each_type(benchmark::internal::Benchmark* benchmark) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [inputs, outputs] : std::initializer_list<std::pair<int, int>>{
             {768, 768}, {768, 2304}, {768, 3072}, {3072, 768}, {768, 50304}}) {
      for (const int direction : {0, 1, 2}) {
        benchmark->Args({inputs, outputs, direction, static_cast<int>(dtype)});
      }
    }
  }
}
BENCHMARK(linear)->Apply(linear_of_each_type)->UseRealTime()->Unit(benchmark::kMillisecond);

void openblas(benchmark::State& state) {
  for (auto _ : state) state.counters["GFLOP/s"] = openblas_rate() * 1e-9;
}
BENCHMARK(openblas)->Iterations(1)->UseRealTime()->Unit(benchmark::kMillisecond);

void attention(benchmark::State& state) {
  const auto dtype = static_cast<DType>(state.range(1));
  const kernels::AttentionShape shape{1, kTokens, 12, 12, 64};
  const Tensor qkv = tensor("qkv", kTokens * shape.packed_width(), dtype);
  const Tensor out = tensor("out", kTokens * kWidth, dtype);
  const Tensor dout = tensor("dout", kTokens * kWidth, dtype);
  const Tensor dqkv = tensor("dqkv", kTokens * shape.packed_width(), dtype);
  const Tensor lse = tensor("lse", kTokens * 12);
  const Tensor workspace = tensor("attention.workspace",
                                  kernels::attention_workspace_bytes(
                                      shape, dtype, {DeviceKind::kCpu, engine::num_usable_cores()}),
                                  DType::kU8);
  kernels::attention_forward(stream(), {shape, qkv, {}, out, lse, workspace});
  const bool backward = state.range(0) == 1;
  state.SetLabel(fmt::format("{} {} {}", name_of(kernels::isa()), name_of(dtype),
                             backward ? "backward" : "forward"));
  // Causal: half of S x S; two products forward, five backward.
  measure_flops(state, dtype, (backward ? 5.0 : 2.0) * kTokens * kTokens * kWidth, [&] {
    if (backward) {
      kernels::attention_backward(stream(), {shape, qkv, out, lse, dout, {}, dqkv, workspace});
    } else {
      kernels::attention_forward(stream(), {shape, qkv, {}, out, lse, workspace});
    }
  });
}
BENCHMARK(attention)
    ->ArgsProduct({{0, 1}, {static_cast<int>(DType::kF32), static_cast<int>(DType::kBF16)}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

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
        stream(),
        {.shape = shape,
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
         .workspace = tensor("norm.workspace", kernels::norm_backward_workspace_bytes(shape, {}),
                             DType::kU8)});
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
  kernels::rotary_table(stream(), table, kTokens, width, {.theta = 10000.0});
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
  const Tensor out = tensor("squares", ExactSum::kNumbers, DType::kF64);
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

}  // namespace
}  // namespace sherd

BENCHMARK_MAIN();
