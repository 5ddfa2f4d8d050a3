// GPU kernels at the sizes of two models against this GPU's own bounds, measured in the same run:
// bytes against a copy, products against one large product. Time is the median between CUDA events,
// with the caches overwritten before each call.
//
//   share   the part of the bound that is reached: max(bytes / copy, flops / product) / time
//   peak    products: of 989 TFLOP/s, the dense bf16 peak of an H100 or H200 (NVIDIA's data sheets)
//
//   sherd_cuda_bench [FILTER]    rows whose name contains FILTER

#include <cmath>
#include <cstdio>
#include <cstring>

#include "core/cuda_device.h"
#include "core/exact_sum.h"
#include "kernels/cuda/forms.h"
#include "kernels/device.h"

namespace sherd {
namespace {

using kernels::AttentionShape;
using kernels::LinearShape;

constexpr double kPeakFlops = 989e12;
constexpr int kRepeats = 21;
constexpr std::int64_t kSweepBytes = 256 << 20;  // several times any L2 cache

/// B sequences of S positions, D width, F feed-forward width, H and G heads of width K, V words.
struct Model {
  const char* name;
  std::int64_t B, S, D, F, H, G, K, V;
  bool llama;

  std::int64_t T() const { return B * S; }
  std::int64_t E() const { return (H + 2 * G) * K; }
};
constexpr Model kModels[] = {
    {"gpt2 124m", 16, 1024, 768, 3072, 12, 12, 64, 50304, false},
    {"llama 1b", 4, 2048, 2048, 5632, 32, 8, 64, 32000, true},
};

class Bench {
 public:
  explicit Bench(const char* filter)
      : filter_(filter), memory_(cuda_arena_memory(std::int64_t{8} << 30)) {
    sweep_ = raw(kSweepBytes);
    kept_ = used_;
    measure_bounds();
  }

  Stream& stream() { return *stream_; }
  bool wants(const char* row) const { return std::strstr(row, filter_) != nullptr; }
  void use(bool deterministic) { stream_ = make_cuda_stream({}, {.deterministic = deterministic}); }
  void clear() { used_ = kept_; }

  /// Normal numbers, of standard deviation 0.5.
  Tensor tensor(std::int64_t numel, DType dtype = DType::kBF16) {
    const Tensor wide{raw(numel * 4).data, DType::kF32, numel};
    kernels::fill_normal(stream(), wide, {1, 2, 3}, used_, 0.0f, 0.5f);
    if (dtype == DType::kF32) return wide;
    const Tensor narrow{raw(numel * 2).data, dtype, numel};
    kernels::cast(stream(), wide, narrow);
    return narrow;
  }
  Tensor tokens(std::int64_t numel, std::int64_t vocab_size) {
    const auto host = pinned_memory(numel * 4);
    auto* ids = static_cast<std::int32_t*>(host.get());
    // A tenth of all are one word, as in text.
    std::uint64_t state = 1;
    for (std::int64_t i = 0; i < numel; ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      const auto draw = static_cast<std::int64_t>(state >> 33);
      ids[i] = draw % 10 == 0 ? 11 : static_cast<std::int32_t>(draw % vocab_size);
    }
    const Tensor device{raw(numel * 4).data, DType::kI32, numel};
    stream().copy(ids, device.data, numel * 4);
    stream().synchronize();
    return device;
  }
  Tensor raw(std::int64_t bytes) {
    used_ = (used_ + 255) / 256 * 256;
    SHERD_CHECK(used_ + bytes <= memory_->bytes(), "a benchmark of {} bytes", used_ + bytes);
    const Tensor piece{memory_->data() + used_, DType::kU8, bytes};
    used_ += bytes;
    return piece;
  }

  /// `bytes` are what must be read and written at least.
  template <class Work>
  void row(const char* model, const char* name, double bytes, double flops, const Work& work) {
    if (!wants(name)) return;
    work();  // plans, and memory that is touched for the first time
    const double seconds = time(work);
    const double bound = std::max(bytes / copy_rate_, flops / matmul_rate_);
    std::printf("%-10s %-34s %10.1f us %8.0f GB/s %8.1f TFLOP/s %6.0f %%", model, name,
                seconds * 1e6, bytes / seconds / 1e9, flops / seconds / 1e12,
                100 * bound / seconds);
    if (flops > 0) std::printf(" %6.0f %%", 100 * flops / seconds / kPeakFlops);
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  template <class Work>
  double time(const Work& work) {
    return kernels::cuda::seconds_on_device(
        stream(), kRepeats, [&] { kernels::fill_zero(stream(), sweep_); }, work);
  }
  void measure_bounds() {
    const std::int64_t numel = 512 << 20;
    const Tensor from = tensor(numel / 4, DType::kF32), to = tensor(numel / 4, DType::kF32);
    copy_rate_ =
        2.0 * static_cast<double>(numel) / time([&] { kernels::cast(stream(), from, to); });
    clear();
    constexpr std::int64_t n = 8192;
    const Tensor a = tensor(n * n), b = tensor(n * n), c = tensor(n * n);
    const Tensor scratch = raw(kernels::linear_workspace_bytes(
        {n, n, n}, DType::kBF16, DType::kBF16, kernels::compute_device(stream())));
    const auto matmul = [&] {
      kernels::linear_forward(stream(), {{n, n, n}, a, b, {}, c, scratch});
    };
    matmul();
    matmul_rate_ = 2.0 * std::pow(static_cast<double>(n), 3) / time(matmul);
    clear();
    std::printf(
        "bounds: copy %.0f GB/s (read and written), product of %lld^3 in bf16 %.0f TFLOP/s "
        "(%.0f %% of %.0f)\n",
        copy_rate_ / 1e9, static_cast<long long>(n), matmul_rate_ / 1e12,
        100 * matmul_rate_ / kPeakFlops, kPeakFlops / 1e12);
    std::printf("%-10s %-34s %13s %13s %16s %8s %8s\n", "model", "kernel", "time", "bytes", "flops",
                "share", "peak");
  }

  const char* filter_;
  std::unique_ptr<ArenaMemory> memory_;
  std::unique_ptr<CudaStream> stream_ = make_cuda_stream({}, {});
  Tensor sweep_;
  std::int64_t used_ = 0, kept_ = 0;
  double copy_rate_ = 1.0, matmul_rate_ = 1.0;
};

double bytes_of(std::initializer_list<ConstTensor> tensors) {
  double bytes = 0.0;
  for (const ConstTensor& tensor : tensors) bytes += static_cast<double>(tensor.bytes());
  return bytes;
}

void matmuls(Bench& bench, const Model& m) {
  struct Projection {
    const char* name;
    std::int64_t inputs, outputs;
  };
  const std::int64_t up = m.llama ? 2 * m.F : m.F;
  for (const Projection& p : {Projection{"qkv", m.D, m.E()},
                              {"attention out", m.H * m.K, m.D},
                              {"up", m.D, up},
                              {"down", m.F, m.D}}) {
    bench.clear();
    const LinearShape shape{m.T(), p.inputs, p.outputs};
    const Tensor x = bench.tensor(m.T() * p.inputs), w = bench.tensor(p.outputs * p.inputs);
    const Tensor y = bench.tensor(m.T() * p.outputs), bias = bench.tensor(p.outputs);
    const Tensor gelu = bench.tensor(m.T() * std::max(p.inputs, p.outputs));
    const Tensor dw = bench.tensor(p.outputs * p.inputs, DType::kF32);
    const Tensor dbias = bench.tensor(p.outputs, DType::kF32);
    const Tensor scratch = bench.raw(kernels::linear_workspace_bytes(
        shape, DType::kBF16, DType::kF32, kernels::compute_device(bench.stream())));
    const double flops = 2.0 * static_cast<double>(m.T()) * static_cast<double>(p.inputs) *
                         static_cast<double>(p.outputs);
    const auto row = [&](const char* label, double bytes, double work_flops, const auto& work) {
      bench.row(m.name, fmt::format("product {} {}", p.name, label).c_str(), bytes, work_flops,
                work);
    };
    const double bytes = bytes_of({x, w, y});
    row("forward", bytes, flops, [&] {
      kernels::linear_forward(bench.stream(), {shape, x, w, {}, y, scratch});
    });
    row("input gradient", bytes, flops, [&] {
      kernels::linear_backward_input(bench.stream(), {shape, y, w, x, false, scratch});
    });
    row("weight gradient", bytes_of({x, y, dw}), flops, [&] {
      kernels::linear_backward_weight(bench.stream(), {shape, y, x, dw, {}, false, scratch});
    });
    if (m.llama) continue;
    row("weight and bias gradient", bytes_of({x, y, dw}), flops, [&] {
      kernels::linear_backward_weight(bench.stream(), {shape, y, x, dw, dbias, false, scratch});
    });
    const Tensor after = gelu.part(0, y.numel), before = gelu.part(0, x.numel);
    row("forward, bias, gelu", bytes_of({x, w, y, after}), flops, [&] {
      kernels::linear_forward(bench.stream(), {shape, x, w, bias, y, scratch, after});
    });
    row("input gradient, gelu", bytes_of({x, w, y, before}), flops, [&] {
      kernels::linear_backward_input(bench.stream(), {shape, y, w, x, false, scratch, before});
    });
  }
}

void attention(Bench& bench, const Model& m) {
  const AttentionShape shape{m.B, m.S, m.H, m.G, m.K};
  const double flops = 2.0 * static_cast<double>(m.B * m.H * m.K) * static_cast<double>(m.S) *
                       static_cast<double>(m.S);  // of two products, half of them masked
  for (const bool deterministic : {true, false}) {
    bench.clear();
    bench.use(deterministic);
    const Tensor qkv = bench.tensor(m.T() * m.E()), dqkv = bench.tensor(m.T() * m.E());
    const Tensor out = bench.tensor(m.T() * m.H * m.K), dout = bench.tensor(m.T() * m.H * m.K);
    const Tensor lse = bench.tensor(m.T() * m.H, DType::kF32);
    const Tensor scratch = bench.raw(kernels::attention_workspace_bytes(
        shape, DType::kBF16, kernels::compute_device(bench.stream())));
    kernels::attention_forward(bench.stream(), {shape, qkv, {}, out, lse, scratch});
    if (deterministic) {
      bench.row(m.name, "attention forward", bytes_of({qkv, out, lse}), flops, [&] {
        kernels::attention_forward(bench.stream(), {shape, qkv, {}, out, lse, scratch});
      });
    }
    bench.row(m.name,
              deterministic ? "attention backward, deterministic" : "attention backward, free",
              bytes_of({qkv, out, lse, dout, dqkv}), 2.5 * flops, [&] {
                kernels::attention_backward(bench.stream(),
                                            {shape, qkv, out, lse, dout, {}, dqkv, scratch});
              });
  }
  bench.use(true);
}

void rows(Bench& bench, const Model& m) {
  bench.clear();
  const kernels::NormKind kind =
      m.llama ? kernels::NormKind::kRmsNorm : kernels::NormKind::kLayerNorm;
  const kernels::NormShape shape{kind, m.T(), m.D, 1e-5f};
  const std::int64_t numel = m.T() * m.D;
  const Tensor residual = bench.tensor(numel), branch = bench.tensor(numel);
  const Tensor sum = bench.tensor(numel), y = bench.tensor(numel), dy = bench.tensor(numel);
  const Tensor weight = bench.tensor(m.D), bias = bench.tensor(m.D);
  const Tensor mean = bench.tensor(m.T(), DType::kF32), rstd = bench.tensor(m.T(), DType::kF32);
  const Tensor dweight = bench.tensor(m.D, DType::kF32), dbias = bench.tensor(m.D, DType::kF32);
  const Tensor scratch = bench.raw(
      kernels::norm_backward_workspace_bytes(shape, kernels::compute_device(bench.stream())));
  bench.row(m.name, "norm forward, residual", bytes_of({residual, branch, sum, y}), 0, [&] {
    kernels::norm_forward(bench.stream(),
                          {shape, residual, branch, {}, weight, bias, sum, y, mean, rstd});
  });
  bench.row(m.name, "norm backward", bytes_of({sum, dy, residual, residual}), 0, [&] {
    kernels::norm_backward(bench.stream(), {shape,
                                            sum,
                                            mean,
                                            rstd,
                                            weight,
                                            dy,
                                            residual,
                                            {},
                                            residual,
                                            {},
                                            dweight,
                                            dbias,
                                            false,
                                            scratch});
  });
  bench.row(m.name, "residual add", bytes_of({residual, branch, sum}), 0,
            [&] { kernels::residual_add(bench.stream(), residual, branch, {}, sum); });
  const kernels::Dropout dropout{0.1f, {1, 2, 3}, 0};
  bench.row(m.name, "residual add, dropout", bytes_of({residual, branch, sum}), 0,
            [&] { kernels::residual_add(bench.stream(), residual, branch, dropout, sum); });
}

void pointwise(Bench& bench, const Model& m) {
  bench.clear();
  const auto kind = m.llama ? kernels::ActivationKind::kSwiGlu : kernels::ActivationKind::kGelu;
  const kernels::ActivationShape shape{kind, m.T(), m.F};
  const std::int64_t inputs = m.T() * (m.llama ? 2 * m.F : m.F);
  const Tensor x = bench.tensor(inputs), dx = bench.tensor(inputs), y = bench.tensor(m.T() * m.F);
  bench.row(m.name, m.llama ? "swiglu forward" : "gelu forward", bytes_of({x, y}), 0, [&] {
    kernels::activation_forward(bench.stream(), {shape, x, y});
  });
  bench.row(m.name, m.llama ? "swiglu backward" : "gelu backward", bytes_of({x, y, dx}), 0, [&] {
    kernels::activation_backward(bench.stream(), {shape, x, y, dx});
  });
  if (!m.llama) return;
  bench.clear();
  const Tensor qkv = bench.tensor(m.T() * m.E()), table = bench.tensor(m.S * m.K, DType::kF32);
  kernels::rotary_table(bench.stream(), table, m.S, m.K, {.theta = 10000.0});
  const double rotated = 2.0 * 2.0 * static_cast<double>(m.T() * (m.H + m.G) * m.K);
  bench.row(m.name, "rotary", rotated, 0, [&] {
    kernels::rotary(bench.stream(), {m.B, m.S, m.H, m.G, m.K, table, qkv, false});
  });
}

void ends(Bench& bench, const Model& m) {
  bench.clear();
  const Tensor tokens = bench.tokens(m.T(), m.V), table = bench.tensor(m.V * m.D);
  const Tensor y = bench.tensor(m.T() * m.D), gradient = bench.tensor(m.V * m.D, DType::kF32);
  const Tensor scratch = bench.raw(kernels::embedding_backward_workspace_bytes(
      m.T(), m.V, kernels::compute_device(bench.stream())));
  bench.row(m.name, "embedding forward", bytes_of({tokens, y, y}), 0, [&] {
    kernels::embedding_forward(bench.stream(), {m.B, m.S, m.D, m.V, tokens, table, {}, {}, y});
  });
  bench.row(m.name, "embedding backward", bytes_of({tokens, y, gradient}), 0, [&] {
    kernels::embedding_backward(bench.stream(), {.sequences = m.B,
                                                 .positions = m.S,
                                                 .width = m.D,
                                                 .vocab_size = m.V,
                                                 .tokens = tokens,
                                                 .dy = y,
                                                 .dropout = {},
                                                 .d_token_weight = gradient,
                                                 .d_position_weight = {},
                                                 .workspace = scratch});
  });
  bench.clear();
  const std::int64_t chunk = (16 << 20) / m.V / 64 * 64;
  const Tensor logits = bench.tensor(chunk * m.V), targets = bench.tokens(chunk, m.V);
  const Tensor losses = bench.tensor(chunk, DType::kF32);
  bench.row(m.name, "cross-entropy with gradient", bytes_of({logits, logits}), 0, [&] {
    kernels::cross_entropy(bench.stream(), {chunk, m.V, logits, targets, losses, true, 1e-4f});
  });
}

void flat(Bench& bench) {
  bench.clear();
  const std::int64_t numel = 64 << 20;
  const Tensor parameter = bench.tensor(numel, DType::kF32);
  const Tensor first = bench.tensor(numel, DType::kF32), second = bench.tensor(numel, DType::kF32);
  const Tensor gradient = bench.tensor(numel, DType::kF32), narrow = bench.tensor(numel);
  const kernels::UpdateSegment segment{0, numel, 0.1f, 0, 0};
  kernels::UpdateCommon common;
  common.parameter = parameter;
  common.gradient = gradient;
  common.segments = {&segment, 1};
  common.lr = 1e-4f;
  const char* size = "64 M";
  bench.row(size, "adamw", 2 * bytes_of({parameter, first, second}) + bytes_of({gradient}), 0, [&] {
    kernels::adam_update(bench.stream(),
                         {.common = common, .exp_avg = first, .exp_avg_sq = second});
  });
  bench.row(size, "lion", 2 * bytes_of({parameter, first}) + bytes_of({gradient}), 0,
            [&] { kernels::lion_update(bench.stream(), {.common = common, .exp_avg = first}); });
  bench.row(size, "cast f32 to bf16", bytes_of({parameter, narrow}), 0,
            [&] { kernels::cast(bench.stream(), parameter, narrow); });
  bench.row(size, "add bf16 to f32", bytes_of({narrow, gradient, gradient}), 0,
            [&] { kernels::add(bench.stream(), narrow, gradient); });
  const std::int64_t partials = kernels::sum_of_squares_workspace_bytes(numel);
  const Tensor out{bench.raw(8 * ExactSum::kNumbers).data, DType::kF64, ExactSum::kNumbers};
  const Tensor scratch{bench.raw(partials).data, DType::kF64, partials / 8};
  bench.row(size, "sum of squares", bytes_of({gradient}), 0,
            [&] { kernels::sum_of_squares(bench.stream(), gradient, out, scratch); });
}

int run(const char* filter) {
  const CudaSystem system = cuda_system();
  if (!system.problem.empty()) {
    std::printf("no GPU: %s\n", system.problem.c_str());
    return 0;
  }
  const CudaDevice& device = system.devices.front();
  std::printf("%s, %d multiprocessors, %.0f GiB; driver runs CUDA %s, built with %s\n",
              device.name.c_str(), device.num_multiprocessors,
              static_cast<double>(device.total_bytes) / (1 << 30),
              cuda_version_text(system.driver_version).c_str(),
              cuda_version_text(system.runtime_version).c_str());
  use_cuda_device(0);
  Bench bench(filter);
  for (const Model& model : kModels) {
    matmuls(bench, model);
    attention(bench, model);
    rows(bench, model);
    pointwise(bench, model);
    ends(bench, model);
  }
  flat(bench);
  return 0;
}

}  // namespace
}  // namespace sherd

int main(int argc, char** argv) {
  try {
    return sherd::run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sherd_cuda_bench: %s\n", error.what());
    return 1;
  }
}
