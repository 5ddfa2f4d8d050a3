#include "kernels/cpu/activation.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/vector_math.h"

namespace sherd::kernels::cpu {
namespace {

/// The logistic function and its derivative; neither loses digits at either end.
struct Gate {
  float value, slope;
};
inline Gate gate(float z) {
  const float e = fast_exp(-std::fabs(z));
  const float inverse = 1.0f / (1.0f + e);
  return {(z < 0.0f ? e : 1.0f) * inverse, e * inverse * inverse};
}

// gelu is x s(z) with s the logistic function, because (1 + tanh(z / 2)) / 2 = s(z); so the
// negative tail keeps its relative accuracy.
constexpr float kLinear = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float kCubic = kLinear * 0.044715f;

inline float gelu(float x) {
  return x * fast_sigmoid(x * std::fma(kCubic, x * x, kLinear));
}

inline float gelu_slope(float x) {
  // x^2 is bounded so that 0 * x^2 stays 0; beyond 20 s is 0 or 1. As integers: see fast_exp.
  constexpr std::int32_t kBound = std::bit_cast<std::int32_t>(400.0f);
  const float square = std::bit_cast<float>(std::min(std::bit_cast<std::int32_t>(x * x), kBound));
  const Gate s = gate(x * std::fma(kCubic, square, kLinear));
  return std::fma(x * s.slope, std::fma(3.0f * kCubic, square, kLinear), s.value);
}

inline float silu(float x) {
  return x * fast_sigmoid(x);
}

template <class T>
void gelu_forward(ThreadTeam& team, const ActivationForward& args) {
  const T* x = args.x.as<T>();
  T* y = args.y.as<T>();
  parallel_blocks(team, args.x.numel, [=](std::int64_t first, int count) {
    BlockScratch x_scratch, y_scratch;
    const float* in = load_block(x + first, count, x_scratch);
    float* out = block_target(y + first, y_scratch);
#pragma omp simd
    for (int i = 0; i < count; ++i) out[i] = gelu(in[i]);
    store_block(y + first, count, y_scratch);
  });
}

template <class T>
void gelu_backward(ThreadTeam& team, const ActivationBackward& args) {
  const T* x = args.x.as<T>();
  const T* dy = args.dy.as<T>();
  T* dx = args.dx.as<T>();
  parallel_blocks(team, args.x.numel, [=](std::int64_t first, int count) {
    BlockScratch x_scratch, dy_scratch, dx_scratch;
    const float* in = load_block(x + first, count, x_scratch);
    const float* d_out = load_block(dy + first, count, dy_scratch);
    float* d_in = block_target(dx + first, dx_scratch);
#pragma omp simd
    for (int i = 0; i < count; ++i) d_in[i] = d_out[i] * gelu_slope(in[i]);
    store_block(dx + first, count, dx_scratch);
  });
}

template <class T>
void swiglu_forward(ThreadTeam& team, const ActivationForward& args) {
  const std::int64_t width = args.shape.width;
  const T* x = args.x.as<T>();
  T* y = args.y.as<T>();
  parallel_rows(team, args.shape.tokens, width, [=](std::int64_t row) {
    for_each_block(0, width, [=](std::int64_t first, int count) {
      BlockScratch gate_scratch, up_scratch, y_scratch;
      const float* g = load_block(x + 2 * row * width + first, count, gate_scratch);
      const float* u = load_block(x + (2 * row + 1) * width + first, count, up_scratch);
      T* place = y + row * width + first;
      float* out = block_target(place, y_scratch);
#pragma omp simd
      for (int i = 0; i < count; ++i) out[i] = silu(g[i]) * u[i];
      store_block(place, count, y_scratch);
    });
  });
}

template <class T>
void swiglu_backward(ThreadTeam& team, const ActivationBackward& args) {
  const std::int64_t width = args.shape.width;
  const T* x = args.x.as<T>();
  const T* dy = args.dy.as<T>();
  T* dx = args.dx.as<T>();
  parallel_rows(team, args.shape.tokens, width, [=](std::int64_t row) {
    for_each_block(0, width, [=](std::int64_t first, int count) {
      const std::int64_t gate_at = 2 * row * width + first, up_at = gate_at + width;
      BlockScratch gate_scratch, up_scratch, dy_scratch, d_gate_scratch, d_up_scratch;
      const float* g = load_block(x + gate_at, count, gate_scratch);
      const float* u = load_block(x + up_at, count, up_scratch);
      const float* d_out = load_block(dy + row * width + first, count, dy_scratch);
      float* d_gate = block_target(dx + gate_at, d_gate_scratch);
      float* d_up = block_target(dx + up_at, d_up_scratch);
#pragma omp simd
      for (int i = 0; i < count; ++i) {
        const float x = g[i], up = u[i], d = d_out[i];
        const Gate s = gate(x);
        d_up[i] = d * (x * s.value);
        d_gate[i] = d * up * std::fma(x, s.slope, s.value);
      }
      store_block(dx + gate_at, count, d_gate_scratch);
      store_block(dx + up_at, count, d_up_scratch);
    });
  });
}

}  // namespace

void activation_forward(ThreadTeam& team, const ActivationForward& args) {
  dispatch_float(args.x.dtype, [&]<class T>(T) {
    switch (args.shape.kind) {
      case ActivationKind::kGelu:
        return gelu_forward<T>(team, args);
      case ActivationKind::kSwiGlu:
        return swiglu_forward<T>(team, args);
    }
  });
}

void activation_backward(ThreadTeam& team, const ActivationBackward& args) {
  dispatch_float(args.x.dtype, [&]<class T>(T) {
    switch (args.shape.kind) {
      case ActivationKind::kGelu:
        return gelu_backward<T>(team, args);
      case ActivationKind::kSwiGlu:
        return swiglu_backward<T>(team, args);
    }
  });
}

}  // namespace sherd::kernels::cpu
