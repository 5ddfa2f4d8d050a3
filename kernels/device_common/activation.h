/// The feed-forward non-linearities, a pack at a time; the equations are in kernels/activation.h,
/// and the reasons for their form in kernels/cpu/activation.cpp, to which results are
/// bit-identical.
#pragma once

#include "kernels/device_common/math.h"

namespace sherd::kernels::device_common {

struct Gate {
  float value, slope;
};
SHERD_HOST_DEVICE inline Gate gate(float z) {
  const float e = fast_exp(-fabsf(z));
  const float inverse = 1.0f / (1.0f + e);
  return {(z < 0.0f ? e : 1.0f) * inverse, e * inverse * inverse};
}

inline constexpr float kGeluLinear = 1.5957691216057308f;  // 2 sqrt(2 / pi)
inline constexpr float kGeluCubic = kGeluLinear * 0.044715f;

SHERD_HOST_DEVICE inline float gelu(float x) {
  return x * fast_sigmoid(x * fmaf(kGeluCubic, x * x, kGeluLinear));
}
SHERD_HOST_DEVICE inline float gelu_slope(float x) {
  const auto bits = static_cast<std::int32_t>(bits_of(x * x));
  const std::int32_t bound = 0x43c80000;  // 400.0f
  const float square = float_of(static_cast<std::uint32_t>(bits < bound ? bits : bound));
  const Gate s = gate(x * fmaf(kGeluCubic, square, kGeluLinear));
  return fmaf(x * s.slope, fmaf(3.0f * kGeluCubic, square, kGeluLinear), s.value);
}

SHERD_HOST_DEVICE inline float normal_tail(float x) {
  const float width = 0.28284271247461903f;  // 0.4 / sqrt(2)
  const float t = 1.0f / fmaf(width, fabsf(x), 1.0f);
  float p = -0.014607634395360947f;
  p = fmaf(p, t, 0.07022376358509064f);
  p = fmaf(p, t, -0.11776454746723175f);
  p = fmaf(p, t, 0.06878189742565155f);
  p = fmaf(p, t, -0.023448539897799492f);
  p = fmaf(p, t, 0.04195869341492653f);
  p = fmaf(p, t, 0.059503987431526184f);
  p = fmaf(p, t, 0.0858696773648262f);
  p = fmaf(p, t, 0.10380686074495316f);
  p = fmaf(p, t, 0.11283793300390244f);
  p = fmaf(p, t, 0.11283791810274124f);
  const float square = x * x, lost = fmaf(x, x, -square);
  const float e = fast_exp(-0.5f * square);
  return e * t * (square < 200.0f ? fmaf(-0.5f, lost, 1.0f) : 1.0f) * p;
}

/// The value and derivative of an activation at one point.
struct Slope {
  float value, slope;
};
/// The gradients of a gated pair.
struct GatedSlopes {
  float gate, up;
};

struct Gelu {
  SHERD_HOST_DEVICE static float value(float x) { return gelu(x); }
  SHERD_HOST_DEVICE static float slope(float x) { return gelu_slope(x); }
  SHERD_HOST_DEVICE static Slope both(float x) { return {gelu(x), gelu_slope(x)}; }
};

struct GeluErf {
  SHERD_HOST_DEVICE static float value(float x) {
    const float tail = normal_tail(x);
    return x * (x < 0.0f ? tail : 1.0f - tail);
  }
  SHERD_HOST_DEVICE static float slope(float x) {
    const float density = 0.3989422804014327f;  // 1 / sqrt(2 pi)
    const float tail = normal_tail(x), below = x < 0.0f ? tail : 1.0f - tail;
    const float e = fast_exp(-0.5f * x * x);
    return fmaf(e == 0.0f ? 0.0f : x * density, e, below);
  }
};

struct Relu2 {
  SHERD_HOST_DEVICE static float value(float x) { return x < 0.0f ? 0.0f : x * x; }
  SHERD_HOST_DEVICE static float slope(float x) { return x < 0.0f ? 0.0f : x + x; }
};

struct Silu {
  SHERD_HOST_DEVICE static float value(float x) { return x * fast_sigmoid(x); }
  SHERD_HOST_DEVICE static Slope both(float x) {
    const Gate s = gate(x);
    return {x * s.value, fmaf(x, s.slope, s.value)};
  }
};

/// A gated activation: g is the gate, u what it multiplies, d the gradient of the result.
template <class A>
struct Gated {
  SHERD_HOST_DEVICE static float value(float g, float u) { return A::value(g) * u; }
  SHERD_HOST_DEVICE static GatedSlopes gradients(float g, float u, float d) {
    const Slope a = A::both(g);
    return {d * u * a.slope, d * a.value};
  }
};

struct ClampedSwiGlu {
  SHERD_HOST_DEVICE static float value(float g, float u) {
    const float bounded = bounded_gate(g);
    return bounded * fast_sigmoid(1.702f * bounded) * (bounded_up(u) + 1.0f);
  }
  SHERD_HOST_DEVICE static GatedSlopes gradients(float g, float u, float d) {
    const float bounded = bounded_gate(g), up = bounded_up(u);
    const Gate s = gate(1.702f * bounded);
    const float slope = fmaf(1.702f * bounded, s.slope, s.value);
    return {g > 7.0f ? 0.0f : d * (up + 1.0f) * slope, up == u ? d * bounded * s.value : 0.0f};
  }

 private:
  SHERD_HOST_DEVICE static float bounded_gate(float g) { return g > 7.0f ? 7.0f : g; }
  SHERD_HOST_DEVICE static float bounded_up(float u) {
    return u > 7.0f ? 7.0f : u < -7.0f ? -7.0f : u;
  }
};

/// A is one of the plain forms above.
template <class A, class T>
struct PlainForward {
  const T* x;
  T* y;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    float value[N];
    load_wide<N>(x + first, value);
    for (int i = 0; i < N; ++i) value[i] = A::value(value[i]);
    store_narrow<N>(y + first, value);
  }
};

template <class A, class T>
struct PlainBackward {
  const T *x, *dy;
  T* dx;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    float value[N], d[N];
    load_wide<N>(x + first, value);
    load_wide<N>(dy + first, d);
    for (int i = 0; i < N; ++i) d[i] = d[i] * A::slope(value[i]);
    store_narrow<N>(dx + first, d);
  }
};

/// A is a gated form. Applied to y's T * F elements; a pack lies in one row, because F is a multiple of N.
template <class A, class T>
struct GatedForward {
  const T* x;
  T* y;
  std::int64_t width;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    const std::int64_t row = first / width, at = row * width + first;  // 2 row F + column
    float g[N], u[N];
    load_wide<N>(x + at, g);
    load_wide<N>(x + at + width, u);
    for (int i = 0; i < N; ++i) g[i] = A::value(g[i], u[i]);
    store_narrow<N>(y + first, g);
  }
};

template <class A, class T>
struct GatedBackward {
  const T *x, *dy;
  T* dx;
  std::int64_t width;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    const std::int64_t row = first / width, at = row * width + first;
    float g[N], u[N], d[N];
    load_wide<N>(x + at, g);
    load_wide<N>(x + at + width, u);
    load_wide<N>(dy + first, d);
    for (int i = 0; i < N; ++i) {
      const GatedSlopes slopes = A::gradients(g[i], u[i], d[i]);
      g[i] = slopes.gate;
      u[i] = slopes.up;
    }
    store_narrow<N>(dx + at, g);
    store_narrow<N>(dx + at + width, u);
  }
};

}  // namespace sherd::kernels::device_common
