/// Shared by the .cu files: the stream's handle, types, and launches over flat buffers.
#pragma once

#include "core/cuda_device.h"
#include "core/cuda_error.h"
#include "kernels/device_common/number.h"
#include "kernels/device_common/walk.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cuda {

inline cudaStream_t handle_of(Stream& stream) {
  return cuda_stream(stream).handle();
}

/// A grid's first dimension, with a check: more blocks can't be launched, and then none would run.
inline unsigned grid_of(std::int64_t blocks) {
  SHERD_CHECK(blocks >= 1 && blocks <= 0x7fffffff, "a grid of {} blocks", blocks);
  return static_cast<unsigned>(blocks);
}

/// Call it after every launch, so that a refused launch isn't mistaken for one that ran.
inline void check_launch(const char* kernel) {
  check_cuda(cudaGetLastError(), kernel);
}

template <int N, class Body>
__global__ void __launch_bounds__(device_common::kThreads)
    flat_kernel(std::int64_t numel, const Body body) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  device_common::walk_flat<N>(numel, thread, static_cast<std::int64_t>(gridDim.x) * blockDim.x,
                              body);
}

/// Runs `work` over `numel` elements, in packs of N if `packs`, else one by one.
template <int N, class Body>
void launch_flat(Stream& stream, const char* kernel, std::int64_t numel, bool packs,
                 const Body& work) {
  if (numel == 0) return;
  const auto blocks = static_cast<unsigned>(device_common::flat_blocks(numel, packs ? N : 1));
  if (packs) {
    flat_kernel<N><<<blocks, device_common::kThreads, 0, handle_of(stream)>>>(numel, work);
  } else {
    flat_kernel<1><<<blocks, device_common::kThreads, 0, handle_of(stream)>>>(numel, work);
  }
  check_launch(kernel);
}

/// The sum over a block's threads, the same for all of them, in an order that blockDim fixes.
/// `scratch` has room for 32; all threads call it.
template <class T>
__device__ T block_sum(T value, T* scratch) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  __syncthreads();  // threads may still read the last sum
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  T sum = scratch[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) sum += scratch[warp];
  return sum;
}
/// Two sums at once, each as block_sum's; `scratch` has room for 64.
__device__ inline void block_sums(float& a, float& b, float* scratch) {
  for (int offset = 16; offset > 0; offset /= 2) {
    a += __shfl_xor_sync(0xffffffffu, a, offset);
    b += __shfl_xor_sync(0xffffffffu, b, offset);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    scratch[threadIdx.x / 32] = a;
    scratch[32 + threadIdx.x / 32] = b;
  }
  __syncthreads();
  a = scratch[0], b = scratch[32];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) {
    a += scratch[warp];
    b += scratch[32 + warp];
  }
}
template <class T>
__device__ T block_max(T value, T* scratch) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const T other = __shfl_xor_sync(0xffffffffu, value, offset);
    value = other > value ? other : value;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  T most = scratch[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) {
    most = scratch[warp] > most ? scratch[warp] : most;
  }
  return most;
}

}  // namespace sherd::kernels::cuda
