/// kernels/cpu/vector_math.h for host and device: the same IEEE operations in the same order, so
/// results are bit-identical. Its notes on errors and sources apply here; body_math_test.cpp
/// compares the two.
#pragma once

#include <cmath>

#include "kernels/device_common/number.h"

namespace sherd::kernels::device_common {

inline constexpr float kInfinity = __builtin_huge_valf();

SHERD_HOST_DEVICE inline float fast_exp(float x) {
  const float kRound = 12582912.0f + 126.0f;
  const auto largest = static_cast<std::int32_t>(0x4b40007eu + 128u);  // kRound's bits, and 128
  const float shifted = fmaf(x, 1.44269504088896341f, kRound);
  auto bits = static_cast<std::int32_t>(bits_of(shifted));
  bits = bits < largest ? bits : largest;
  const float n = float_of(static_cast<std::uint32_t>(bits)) - kRound;
  float r = fmaf(n, -0.693359375f, x);
  r = fmaf(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  const float twice = fmaf(fmaf(p * r, r, r), 2.0f, 2.0f);
  const float y = twice * float_of(static_cast<std::uint32_t>(bits) << 23);
  return x < -87.0f ? 0.0f : y;
}

SHERD_HOST_DEVICE inline float fast_log(float x) {
  const bool subnormal = x < 1.17549435e-38f;
  const std::uint32_t bits = bits_of(subnormal ? x * 8388608.0f : x);
  const std::int32_t power = static_cast<std::int32_t>(bits - 0x3f3504f3u) >> 23;
  const float f = float_of(bits - (static_cast<std::uint32_t>(power) << 23)) - 1.0f;
  const float e = static_cast<float>(subnormal ? power - 23 : power);
  float p = 7.0376836292e-2f;
  p = fmaf(p, f, -1.1514610310e-1f);
  p = fmaf(p, f, 1.1676998740e-1f);
  p = fmaf(p, f, -1.2420140846e-1f);
  p = fmaf(p, f, 1.4249322787e-1f);
  p = fmaf(p, f, -1.6668057665e-1f);
  p = fmaf(p, f, 2.0000714765e-1f);
  p = fmaf(p, f, -2.4999993993e-1f);
  p = fmaf(p, f, 3.3333331174e-1f);
  const float square = f * f;
  float y = fmaf(e, -2.12194440e-4f, p * f * square);
  y = fmaf(square, -0.5f, y);
  y = fmaf(e, 0.693359375f, f + y);
  y = x == 0.0f ? -kInfinity : y;
  y = x < 0.0f ? __builtin_nanf("") : y;
  return x < kInfinity ? y : x;
}

SHERD_HOST_DEVICE inline float fast_tanh(float x) {
  const float a = fabsf(x), square = x * x;
  float p = -5.70498872745e-3f;
  p = fmaf(p, square, 2.06390887954e-2f);
  p = fmaf(p, square, -5.37397155531e-2f);
  p = fmaf(p, square, 1.33314422036e-1f);
  p = fmaf(p, square, -3.33332819422e-1f);
  const float near = fmaf(p * square, x, x);
  const float far = 1.0f - 2.0f / (fast_exp(a + a) + 1.0f);
  return copysignf(a < 0.625f ? near : far, x);
}

SHERD_HOST_DEVICE inline float fast_sigmoid(float x) {
  return 1.0f / (1.0f + fast_exp(-x));
}

}  // namespace sherd::kernels::device_common
