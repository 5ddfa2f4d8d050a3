/// Flat buffers, a pack at a time; the equations are in kernels/pointwise.h.
#pragma once

#include <cmath>

#include "kernels/device_common/dropout.h"
#include "kernels/device_common/number.h"
#include "kernels/pointwise.h"

namespace sherd::kernels::device_common {

template <class T>
struct Fill {
  T* y;
  T value;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    T pack[N];
    for (int i = 0; i < N; ++i) pack[i] = value;
    store<N>(y + first, pack);
  }
};

template <class From, class To>
struct Cast {
  const From* x;
  To* y;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    float value[N];
    load_wide<N>(x + first, value);
    store_narrow<N>(y + first, value);
  }
};

template <class T, class A>
struct Add {
  const T* x;
  A* accumulator;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    float value[N], sum[N];
    load_wide<N>(x + first, value);
    load_wide<N>(accumulator + first, sum);
    for (int i = 0; i < N; ++i) sum[i] = sum[i] + value[i];
    store_narrow<N>(accumulator + first, sum);
  }
};

struct MoveTowards {
  const float* x;
  float weight;
  float* average;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    float value[N], mean[N];
    load_wide<N>(x + first, value);
    load_wide<N>(average + first, mean);
    for (int i = 0; i < N; ++i) mean[i] = mean[i] + weight * (value[i] - mean[i]);
    store_narrow<N>(average + first, mean);
  }
};

struct Exchange {
  float* a;
  float* b;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    float of_a[N], of_b[N];
    load_wide<N>(a + first, of_a);
    load_wide<N>(b + first, of_b);
    store_narrow<N>(a + first, of_b);
    store_narrow<N>(b + first, of_a);
  }
};

template <class T>
struct ResidualAdd {
  const T* residual;
  const T* branch;
  Mask mask;
  float scale;
  T* out;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    float sum[N], value[N];
    load_wide<N>(residual + first, sum);
    load_wide<N>(branch + first, value);
    mask.apply<N>(first, value);
    for (int i = 0; i < N; ++i) sum[i] = fmaf(scale, value[i], sum[i]);
    store_narrow<N>(out + first, sum);
  }
};

template <class T>
struct DropoutBackward {
  const T* dy;
  Mask mask;
  float scale;
  T* dx;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    float value[N];
    load_wide<N>(dy + first, value);
    mask.apply<N>(first, value);
    for (int i = 0; i < N; ++i) value[i] = value[i] * scale;
    store_narrow<N>(dx + first, value);
  }
};

/// out = ((in_0 + in_1) + in_2) + ..., with onto_out ((out + in_0) + in_1) + ..., rounded once; out
/// may be one of the inputs.
template <class In, class Out, int kMost>
struct SumInOrder {
  const In* input[kMost];
  int num_inputs;
  bool onto_out;
  Out* out;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    float sum[N], value[N];
    if (onto_out) {
      load_wide<N>(out + first, sum);
    } else {
      load_wide<N>(input[0] + first, sum);
    }
    for (int k = onto_out ? 0 : 1; k < num_inputs; ++k) {
      load_wide<N>(input[k] + first, value);
      for (int i = 0; i < N; ++i) sum[i] = sum[i] + value[i];
    }
    store_narrow<N>(out + first, sum);
  }
};

/// kernels/pointwise.h's sum of squares: blocks of 4096 elements, each over 16 lanes (element i to
/// lane i mod 16), the lanes added as a tree. This is one lane's sum.
inline constexpr std::int64_t kSumBlock = 4096;
inline constexpr int kSumLanes = 16;

template <class T>
SHERD_HOST_DEVICE double lane_of_squares(const T* x, std::int64_t numel, std::int64_t block,
                                         int lane) {
  const std::int64_t begin = block * kSumBlock;
  const std::int64_t end = numel < begin + kSumBlock ? numel : begin + kSumBlock;
  double sum = 0.0;
#pragma unroll 8
  for (std::int64_t i = begin + lane; i < end; i += kSumLanes) {
    const auto value = static_cast<double>(widen(x[i]));
    sum += value * value;
  }
  return sum;
}

/// Whether the exponent of an element is all ones: infinite or NaN.
SHERD_HOST_DEVICE inline bool is_non_finite(float x) {
  return (bits_of(x) & 0x7f800000u) == 0x7f800000u;
}
SHERD_HOST_DEVICE inline bool is_non_finite(BFloat16 x) {
  return (x.bits & 0x7f80u) == 0x7f80u;
}
SHERD_HOST_DEVICE inline bool is_non_finite(Float16 x) {
  return (x.bits & 0x7c00u) == 0x7c00u;
}

/// The first non-finite element that this thread sees, or numel.
template <class T>
SHERD_HOST_DEVICE std::int64_t first_non_finite(const T* x, std::int64_t numel, std::int64_t thread,
                                                std::int64_t num_threads) {
  for (std::int64_t i = thread; i < numel; i += num_threads) {
    if (is_non_finite(x[i])) return i;
  }
  return numel;
}

struct FillUniform {
  RandomAddress address;
  std::int64_t first_element;
  float bound;
  float* out;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    for (std::int64_t i = first; i < first + N; ++i) {
      const auto element = static_cast<std::uint64_t>(first_element + i);
      out[i] = uniform_number(random_word(address, element), bound);
    }
  }
};

}  // namespace sherd::kernels::device_common
