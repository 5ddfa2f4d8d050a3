/// GELU and SwiGLU, a pack at a time; the equations are in kernels/activation.h, and why they are
/// computed like this in kernels/cpu/activation.cpp, whose bits these are.
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

template <class T>
struct GeluForward {
  const T* x;
  T* y;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    float value[N];
    load_wide<N>(x + first, value);
    for (int i = 0; i < N; ++i) value[i] = gelu(value[i]);
    store_narrow<N>(y + first, value);
  }
};

template <class T>
struct GeluBackward {
  const T *x, *dy;
  T* dx;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    float value[N], d[N];
    load_wide<N>(x + first, value);
    load_wide<N>(dy + first, d);
    for (int i = 0; i < N; ++i) d[i] = d[i] * gelu_slope(value[i]);
    store_narrow<N>(dx + first, d);
  }
};

/// Walked over y's T * F elements; a pack lies in one row, because F is a multiple of N.
template <class T>
struct SwigluForward {
  const T* x;
  T* y;
  std::int64_t width;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    const std::int64_t row = first / width, at = row * width + first;  // 2 row F + column
    float g[N], u[N];
    load_wide<N>(x + at, g);
    load_wide<N>(x + at + width, u);
    for (int i = 0; i < N; ++i) g[i] = (g[i] * fast_sigmoid(g[i])) * u[i];
    store_narrow<N>(y + first, g);
  }
};

template <class T>
struct SwigluBackward {
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
      const Gate s = gate(g[i]);
      const float d_gate = d[i] * u[i] * fmaf(g[i], s.slope, s.value);
      u[i] = d[i] * (g[i] * s.value);
      g[i] = d_gate;
    }
    store_narrow<N>(dx + at, g);
    store_narrow<N>(dx + at + width, u);
  }
};

}  // namespace sherd::kernels::device_common
