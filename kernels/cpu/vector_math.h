/// exp, log, tanh and the logistic function in float, as straight-line code that GCC vectorises in
/// `#pragma omp simd` loops. Only IEEE operations and explicit fma: an element's result is
/// bit-identical in a vector's body, in its tail and in scalar code.
///
/// Errors are against the value in double, over the whole range, measured by vector_math_test.cpp.
/// Polynomials: Moshier, Cephes (expf.c, logf.c, tanhf.c).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace sherd::kernels::cpu {

/// e^x, at most 1.1 ulp. -inf gives 0, overflow inf, NaN stays; results below 1.7e-38 become 0.
inline float fast_exp(float x) {
  // Adding 1.5 * 2^23 rounds to an integer n; adding 126 more leaves n + 126 in the low bits, the
  // biased exponent of 2^(n-1). That is one less than n, so that n = 128 works too; a polynomial
  // for 2 e^r compensates. n is bounded as an integer and the result chosen last: bounding x by
  // `?:` would let GCC thread jumps through the whole function, which triples the vector code.
  constexpr float kRound = 12582912.0f + 126.0f;
  constexpr std::int32_t kLargest = std::bit_cast<std::int32_t>(kRound) + 128;
  const float shifted = std::fma(x, 1.44269504088896341f, kRound);
  const std::int32_t bits = std::min(std::bit_cast<std::int32_t>(shifted), kLargest);
  const float n = std::bit_cast<float>(bits) - kRound;
  float r = std::fma(n, -0.693359375f, x);
  r = std::fma(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  const float twice = std::fma(std::fma(p * r, r, r), 2.0f, 2.0f);
  const float y = twice * std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 23);
  return x < -87.0f ? 0.0f : y;
}

/// The natural logarithm, at most 0.9 ulp. 0 gives -inf, a negative number NaN; inf and NaN stay.
inline float fast_log(float x) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const bool subnormal = x < std::numeric_limits<float>::min();
  const auto bits = std::bit_cast<std::uint32_t>(subnormal ? x * 8388608.0f : x);
  // Divides by the power of two that leaves [sqrt(1/2), sqrt(2)), and subtracts one.
  const std::int32_t power = static_cast<std::int32_t>(bits - 0x3f3504f3u) >> 23;
  const float f = std::bit_cast<float>(bits - (static_cast<std::uint32_t>(power) << 23)) - 1.0f;
  const float e = static_cast<float>(subnormal ? power - 23 : power);
  float p = 7.0376836292e-2f;
  p = std::fma(p, f, -1.1514610310e-1f);
  p = std::fma(p, f, 1.1676998740e-1f);
  p = std::fma(p, f, -1.2420140846e-1f);
  p = std::fma(p, f, 1.4249322787e-1f);
  p = std::fma(p, f, -1.6668057665e-1f);
  p = std::fma(p, f, 2.0000714765e-1f);
  p = std::fma(p, f, -2.4999993993e-1f);
  p = std::fma(p, f, 3.3333331174e-1f);
  const float square = f * f;
  float y = std::fma(e, -2.12194440e-4f, p * f * square);
  y = std::fma(square, -0.5f, y);
  y = std::fma(e, 0.693359375f, f + y);
  y = x == 0.0f ? -kInfinity : y;
  y = x < 0.0f ? std::numeric_limits<float>::quiet_NaN() : y;
  return x < kInfinity ? y : x;  // inf and NaN
}

/// tanh, at most 1.4 ulp. Odd; reaches exactly +-1.
inline float fast_tanh(float x) {
  const float a = std::fabs(x);
  const float square = x * x;
  float p = -5.70498872745e-3f;
  p = std::fma(p, square, 2.06390887954e-2f);
  p = std::fma(p, square, -5.37397155531e-2f);
  p = std::fma(p, square, 1.33314422036e-1f);
  p = std::fma(p, square, -3.33332819422e-1f);
  const float near = std::fma(p * square, x, x);
  const float far = 1.0f - 2.0f / (fast_exp(a + a) + 1.0f);
  return std::copysign(a < 0.625f ? near : far, x);  // also the sign of zero
}

/// 1 / (1 + e^-x), at most 2.4 ulp where it is above 1.2e-38. -inf gives 0, inf 1, NaN stays.
inline float fast_sigmoid(float x) {
  return 1.0f / (1.0f + fast_exp(-x));
}

}  // namespace sherd::kernels::cpu
