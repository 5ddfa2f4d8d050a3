#include "engine/launch/cpu_rates.h"

#include <time.h>

#include <algorithm>
#include <functional>
#include <map>

#include "core/memory.h"
#include "core/stream.h"
#include "engine/launch/system_info.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/isa.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"
#include "kernels/update.h"
#include "sharding/comm/threads.h"
#include "sharding/mesh/process_groups.h"

namespace sherd::engine {
namespace {

constexpr int kRounds = 16;
constexpr double kSecondsOfARound = 2e-3;

class Bench {
 public:
  explicit Bench(int threads)
      : threads_(threads),
        stream_(make_cpu_compute_stream({.name = "rates",
                                         .rank = 0,
                                         .num_threads = threads,
                                         .may_spin = false,
                                         .hook = {},
                                         .trace = nullptr})) {}

  Stream& stream() { return *stream_; }
  int threads() const { return threads_; }

  // Normal numbers, in a buffer of its own.
  Tensor tensor(std::int64_t numel, DType dtype) {
    const std::string name = std::to_string(buffers_.size());
    buffers_.push_back(memory_.acquire({name, Category::kWorkspace, dtype, numel}));
    const Tensor made = buffers_.back();
    if (dtype == DType::kF32) {
      kernels::fill_normal(stream(), made, {1, 2, 3}, 0, 0.0f, 0.1f);
    } else if (size_of(dtype) == 2) {
      kernels::cast(stream(), tensor(numel, DType::kF32), made);
    }
    return made;
  }

  // Seconds of one call: the best round of several calls. It is measured in processor time,
  // so other programs disturb it little. Waits of one thread for another aren't counted.
  double seconds(const std::function<void()>& call) {
    call();
    stream().synchronize();
    double best = 1e9;
    int calls = 1;
    for (int round = 0; round < kRounds; ++round) {
      const double begin = now();
      for (int i = 0; i < calls; ++i) call();
      stream().synchronize();
      const double of_round = now() - begin;
      best = std::min(best, of_round / calls);
      calls = std::clamp(static_cast<int>(kSecondsOfARound / std::max(best, 1e-9)), 1, 10'000);
    }
    return best / threads_;
  }

 private:
  static double now() {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  int threads_;
  std::unique_ptr<Stream> stream_;
  HeapAllocator memory_;
  std::vector<Buffer> buffers_;
};

double matmul_rate(Bench& bench, std::int64_t n, DType dtype) {
  const Tensor x = bench.tensor(n * n, dtype), w = bench.tensor(n * n, dtype);
  const Tensor y = bench.tensor(n * n, dtype);
  const std::int64_t bytes = kernels::linear_workspace_bytes(
      {n, n, n}, dtype, DType::kF32,
      {.kind = DeviceKind::kCpu, .num_threads = bench.threads(), .deterministic = true});
  const Tensor workspace = bench.tensor(bytes, DType::kU8);
  const double seconds = bench.seconds([&] {
    kernels::linear_forward(
        bench.stream(),
        {.shape = {n, n, n}, .x = x, .w = w, .bias = {}, .y = y, .workspace = workspace});
  });
  return 2.0 * static_cast<double>(n * n * n) / seconds;
}

void measure_attention(Bench& bench, DType dtype, CpuKernelRates& rates) {
  const kernels::AttentionShape shape{
      .sequences = 2, .positions = 256, .query_heads = 8, .kv_heads = 8, .head_width = 64};
  const std::int64_t tokens = shape.tokens(), width = 8 * 64;
  const Tensor qkv = bench.tensor(3 * tokens * width, dtype),
               out = bench.tensor(tokens * width, dtype);
  const Tensor lse = bench.tensor(tokens * 8, DType::kF32);
  const Tensor dout = bench.tensor(tokens * width, dtype);
  const Tensor dqkv = bench.tensor(3 * tokens * width, dtype);
  const Tensor workspace = bench.tensor(
      kernels::attention_workspace_bytes(
          shape, dtype,
          {.kind = DeviceKind::kCpu, .num_threads = bench.threads(), .deterministic = true}),
      DType::kU8);
  const double pairs = 2.0 * 8.0 * 256.0 * 257.0 / 2.0, flops = 4.0 * pairs * 64.0;
  rates.attention_forward = flops / bench.seconds([&] {
    kernels::attention_forward(bench.stream(), {.shape = shape,
                                                .qkv = qkv,
                                                .dropout = {},
                                                .out = out,
                                                .lse = lse,
                                                .workspace = workspace});
  });
  rates.attention_backward = 2.5 * flops / bench.seconds([&] {
    kernels::attention_backward(bench.stream(), {.shape = shape,
                                                 .qkv = qkv,
                                                 .out = out,
                                                 .lse = lse,
                                                 .dout = dout,
                                                 .dropout = {},
                                                 .dqkv = dqkv,
                                                 .workspace = workspace});
  });
}

// Of the size that a small model's micro-batch has.
void measure_elements(Bench& bench, DType dtype, CpuKernelRates& rates) {
  constexpr std::int64_t kTokens = 1024, kWidth = 512;
  const Tensor x = bench.tensor(2 * kTokens * kWidth, dtype);
  const Tensor y = bench.tensor(kTokens * kWidth, dtype);
  const auto bytes = [&](double elements) {
    return elements * static_cast<double>(size_of(dtype) * kTokens * kWidth);
  };
  rates.elements = bytes(3.0) / bench.seconds([&] {
    kernels::activation_forward(
        bench.stream(),
        {.shape = {kernels::ActivationKind::kSwiGlu, kTokens, kWidth}, .x = x, .y = y});
  });
  const kernels::NormShape shape{
      .kind = kernels::NormKind::kRmsNorm, .tokens = kTokens, .width = kWidth};
  const Tensor weight = bench.tensor(kWidth, dtype), dweight = bench.tensor(kWidth, DType::kF32);
  const Tensor mean = bench.tensor(kTokens, DType::kF32), rstd = bench.tensor(kTokens, DType::kF32);
  const Tensor dx = bench.tensor(kTokens * kWidth, dtype),
               r = bench.tensor(kTokens * kWidth, dtype);
  const Tensor workspace = bench.tensor(
      kernels::norm_backward_workspace_bytes(
          shape, {.kind = DeviceKind::kCpu, .num_threads = bench.threads(), .deterministic = true}),
      DType::kU8);
  rates.norm_backward = bytes(4.0) / bench.seconds([&] {
    kernels::norm_backward(bench.stream(), {.shape = shape,
                                            .residual = r,
                                            .mean = mean,
                                            .rstd = rstd,
                                            .weight = weight,
                                            .dy = y,
                                            .d_residual_out = r,
                                            .branch_dropout = {},
                                            .d_residual_in = dx,
                                            .d_branch = {},
                                            .dweight = dweight,
                                            .dbias = {},
                                            .workspace = workspace});
  });
}

CpuKernelRates measure_type(Bench& bench, DType dtype) {
  CpuKernelRates rates;
  for (const int size : kCpuMatmulSizes) rates.matmul.push_back(matmul_rate(bench, size, dtype));
  measure_attention(bench, dtype, rates);
  measure_elements(bench, dtype, rates);
  return rates;
}

// Larger than caches, as a model's state is.
constexpr std::int64_t kStateNumel = 4 << 20;

double add_rate(Bench& bench) {
  const Tensor sum = bench.tensor(kStateNumel, DType::kF32);
  const Tensor x = bench.tensor(kStateNumel, DType::kF32);
  return 12.0 * kStateNumel / bench.seconds([&] { kernels::add(bench.stream(), x, sum); });
}

double update_rate(Bench& bench) {
  const Tensor parameter = bench.tensor(kStateNumel, DType::kF32);
  const Tensor gradient = bench.tensor(kStateNumel, DType::kF32);
  const Tensor first = bench.tensor(kStateNumel, DType::kF32);
  const Tensor second = bench.tensor(kStateNumel, DType::kF32);
  kernels::fill_zero(bench.stream(), second);
  const std::vector<kernels::UpdateSegment> segments = {{.first = 0, .count = kStateNumel}};
  return 28.0 * kStateNumel / bench.seconds([&] {
    kernels::adam_update(bench.stream(), {.common = {.parameter = parameter,
                                                     .gradient = gradient,
                                                     .segments = segments,
                                                     .lr = 1e-6f},
                                          .exp_avg = first,
                                          .exp_avg_sq = second});
  });
}

double call_seconds(Bench& bench) {
  const Tensor few = bench.tensor(64, DType::kF32);
  return bench.seconds([&] { kernels::fill_zero(bench.stream(), few); });
}

// Two ranks; each takes the other's half.
double exchange_rate(Bench& bench) {
  constexpr std::int64_t kNumel = 2 << 20;
  const sharding::Mesh mesh = sharding::Mesh::sharded(2);
  const auto rendezvous = sharding::make_thread_rendezvous();
  std::vector<std::unique_ptr<sharding::Communicator>> communicators;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<Tensor> full;
  for (int r = 0; r < 2; ++r) {
    communicators.push_back(rendezvous->join(
        sharding::group_of(mesh, r, sharding::zero_axes(), sharding::Purpose::kGather)));
    streams.push_back(make_cpu_worker_stream({.name = "rates", .rank = r, .hook = {}}));
    full.push_back(bench.tensor(kNumel, DType::kF32));
  }
  bench.stream().synchronize();
  const double seconds = bench.seconds([&] {
    for (std::size_t r = 0; r < 2; ++r) {
      communicators[r]->all_gather(*streams[r], "rates", full[r]);
    }
    for (auto& stream : streams) stream->synchronize();
  });
  return 0.5 * 4.0 * kNumel / (0.5 * seconds);  // each on a core
}

}  // namespace

CpuRates measure_cpu_rates() {
  CpuRates rates;
  rates.processor = processor_name();
  rates.isa = kernels::name_of(kernels::isa());
  rates.cores = num_usable_cores();
  Bench one(1), all(rates.cores);
  rates.f32 = measure_type(one, DType::kF32);
  rates.bf16 = measure_type(one, DType::kBF16);
  rates.update = update_rate(one);
  rates.add = add_rate(one);
  rates.call = call_seconds(one);
  rates.exchange = exchange_rate(one);
  if (rates.cores == 1) return rates;
  const double cores = rates.cores;
  rates.scaling = std::clamp(matmul_rate(all, 512, DType::kF32) / (cores * rates.f32.matmul[3]),
                             1.0 / cores, 1.0);
  rates.memory_scaling = std::clamp(add_rate(all) / (cores * rates.add), 1.0 / cores, 1.0);
  return rates;
}

}  // namespace sherd::engine
