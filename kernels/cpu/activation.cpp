#include "kernels/cpu/activation.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/wide.h"
#include "kernels/dispatch_float.h"

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

// The standard normal distribution's tail, the integral from |x| to infinity, within 4e-7 of
// itself: exp(-x^2 / 2) t P(t), t = 1 / (1 + 0.4 |x| / sqrt(2)). P was fitted to erfcx by least
// squares with weights moved towards the largest relative error (Lawson 1961).
inline float normal_tail(float x) {
  constexpr float kWidth = 0.28284271247461903f;  // 0.4 / sqrt(2)
  const float t = 1.0f / std::fma(kWidth, std::fabs(x), 1.0f);
  float p = -0.014607634395360947f;
  p = std::fma(p, t, 0.07022376358509064f);
  p = std::fma(p, t, -0.11776454746723175f);
  p = std::fma(p, t, 0.06878189742565155f);
  p = std::fma(p, t, -0.023448539897799492f);
  p = std::fma(p, t, 0.04195869341492653f);
  p = std::fma(p, t, 0.059503987431526184f);
  p = std::fma(p, t, 0.0858696773648262f);
  p = std::fma(p, t, 0.10380686074495316f);
  p = std::fma(p, t, 0.11283793300390244f);
  p = std::fma(p, t, 0.11283791810274124f);
  // What x^2 loses when it is rounded counts in its exponential.
  const float square = x * x, lost = std::fma(x, x, -square);
  const float e = fast_exp(-0.5f * square);
  return e * t * (square < 200.0f ? std::fma(-0.5f, lost, 1.0f) : 1.0f) * p;
}

/// What an activation and its derivative are at one place.
struct Slope {
  float value, slope;
};

struct Gelu {
  static float value(float x) { return gelu(x); }
  static float slope(float x) { return gelu_slope(x); }
  static Slope both(float x) { return {gelu(x), gelu_slope(x)}; }
};

struct GeluErf {
  static float value(float x) {
    const float tail = normal_tail(x);
    return x * (x < 0.0f ? tail : 1.0f - tail);
  }
  static float slope(float x) {
    constexpr float kDensity = 0.3989422804014327f;  // 1 / sqrt(2 pi)
    const float tail = normal_tail(x), below = x < 0.0f ? tail : 1.0f - tail;
    const float e = fast_exp(-0.5f * x * x);
    return std::fma(e == 0.0f ? 0.0f : x * kDensity, e, below);  // 0 at both ends, not inf * 0
  }
};

struct Relu2 {
  static float value(float x) { return x < 0.0f ? 0.0f : x * x; }
  static float slope(float x) { return x < 0.0f ? 0.0f : x + x; }
};

struct Silu {
  static float value(float x) { return x * fast_sigmoid(x); }
  static Slope both(float x) {
    const Gate s = gate(x);
    return {x * s.value, std::fma(x, s.slope, s.value)};
  }
};

/// A gated activation's two gradients.
struct GatedSlopes {
  float gate, up;
};

/// A(gate) times up.
template <class A>
struct Gated {
  static float value(float g, float u) { return A::value(g) * u; }
  static GatedSlopes gradients(float g, float u, float d) {
    const Slope a = A::both(g);
    return {d * u * a.slope, d * a.value};
  }
};

struct ClampedSwiGlu {
  static constexpr float kSteepness = 1.702f, kLimit = 7.0f;
  static float bounded_gate(float g) { return g > kLimit ? kLimit : g; }
  static float bounded_up(float u) { return u > kLimit ? kLimit : u < -kLimit ? -kLimit : u; }
  static float value(float g, float u) {
    const float gate = bounded_gate(g);
    return gate * fast_sigmoid(kSteepness * gate) * (bounded_up(u) + 1.0f);
  }
  static GatedSlopes gradients(float g, float u, float d) {
    const float bounded = bounded_gate(g), up = bounded_up(u);
    const Gate s = gate(kSteepness * bounded);
    const float slope = std::fma(kSteepness * bounded, s.slope, s.value);
    return {g > kLimit ? 0.0f : d * (up + 1.0f) * slope, up == u ? d * bounded * s.value : 0.0f};
  }
};

template <class A, class T>
void plain_forward(ThreadTeam& team, const ActivationForward& args) {
  const T* x = args.x.as<T>();
  T* y = args.y.as<T>();
  parallel_blocks(team, args.x.numel, [=](std::int64_t first, int count) {
    BlockScratch x_scratch, y_scratch;
    const float* in = load_block(x + first, count, x_scratch);
    float* out = block_target(y + first, y_scratch);
    each_element(count, [=](std::int64_t i) { out[i] = A::value(in[i]); });
    store_block(y + first, count, y_scratch);
  });
}

template <class A, class T>
void plain_backward(ThreadTeam& team, const ActivationBackward& args) {
  const T* x = args.x.as<T>();
  const T* dy = args.dy.as<T>();
  T* dx = args.dx.as<T>();
  parallel_blocks(team, args.x.numel, [=](std::int64_t first, int count) {
    BlockScratch x_scratch, dy_scratch, dx_scratch;
    const float* in = load_block(x + first, count, x_scratch);
    const float* d_out = load_block(dy + first, count, dy_scratch);
    float* d_in = block_target(dx + first, dx_scratch);
    each_element(count, [=](std::int64_t i) { d_in[i] = d_out[i] * A::slope(in[i]); });
    store_block(dx + first, count, dx_scratch);
  });
}

template <class A, class T>
void gated_forward(ThreadTeam& team, const ActivationForward& args) {
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
      each_element(count, [=](std::int64_t i) { out[i] = A::value(g[i], u[i]); });
      store_block(place, count, y_scratch);
    });
  });
}

template <class A, class T>
void gated_backward(ThreadTeam& team, const ActivationBackward& args) {
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
      each_element(count, [=](std::int64_t i) {
        const GatedSlopes slopes = A::gradients(g[i], u[i], d_out[i]);
        d_up[i] = slopes.up;
        d_gate[i] = slopes.gate;
      });
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
        return plain_forward<Gelu, T>(team, args);
      case ActivationKind::kGeluErf:
        return plain_forward<GeluErf, T>(team, args);
      case ActivationKind::kRelu2:
        return plain_forward<Relu2, T>(team, args);
      case ActivationKind::kSwiGlu:
        return gated_forward<Gated<Silu>, T>(team, args);
      case ActivationKind::kGeGlu:
        return gated_forward<Gated<Gelu>, T>(team, args);
      case ActivationKind::kClampedSwiGlu:
        return gated_forward<ClampedSwiGlu, T>(team, args);
    }
  });
}

void activation_backward(ThreadTeam& team, const ActivationBackward& args) {
  dispatch_float(args.x.dtype, [&]<class T>(T) {
    switch (args.shape.kind) {
      case ActivationKind::kGelu:
        return plain_backward<Gelu, T>(team, args);
      case ActivationKind::kGeluErf:
        return plain_backward<GeluErf, T>(team, args);
      case ActivationKind::kRelu2:
        return plain_backward<Relu2, T>(team, args);
      case ActivationKind::kSwiGlu:
        return gated_backward<Gated<Silu>, T>(team, args);
      case ActivationKind::kGeGlu:
        return gated_backward<Gated<Gelu>, T>(team, args);
      case ActivationKind::kClampedSwiGlu:
        return gated_backward<ClampedSwiGlu, T>(team, args);
    }
  });
}

}  // namespace sherd::kernels::cpu
