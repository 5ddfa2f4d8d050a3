/// Sums over a warp in the order of kernels/cpu/lane_sum.h.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace sherd::kernels::cuda {

/// `value`: what lane i has added up of the elements i, i + 32, ... All lanes call it and get the
/// sum.
__device__ inline float lane_sum(float value) {
  // A sum doesn't depend on which of two addends is first, so this is the CPU's tree.
  for (const int distance : {8, 16, 1, 2, 4}) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

/// <a, b> of rows of `width` elements.
template <class T>
__device__ float lane_dot(const T* a, const T* b, std::int64_t width) {
  float sum = 0.0f;
  for (std::int64_t i = threadIdx.x % 32; i < width; i += 32) {
    sum += device_common::widen(a[i]) * device_common::widen(b[i]);
  }
  return lane_sum(sum);
}

}  // namespace sherd::kernels::cuda
