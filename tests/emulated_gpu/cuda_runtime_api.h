/// Stands in for CUDA's header where there is no GPU: the .cu files of kernels/cuda, rewritten by
/// rewrite.py, are compiled for the host against it, and cuda_tests runs them there. Every thread
/// of a block is a fiber; barriers and shuffles really wait; blocks run one after the other.
///
/// What this shows: index arithmetic, barriers, alignment of packs, races (watch.h), the order of sums, results.
/// What it can't: the device's own rounding (all is IEEE's here), speed.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include "tests/emulated_gpu/watch.h"

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
namespace emulated {
/// The indices of the running thread, and the sizes of its launch.
struct Places {
  dim3 grid, block_size, block{0, 0, 0}, thread{0, 0, 0};
};
inline Places places;
}  // namespace emulated
#define gridDim emulated::places.grid
#define blockDim emulated::places.block_size
#define blockIdx emulated::places.block
#define threadIdx emulated::places.thread

struct CUstream_st;
using cudaStream_t = CUstream_st*;

enum cudaError { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
using cudaError_t = cudaError;
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
inline cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int) {
  return cudaSuccess;
}

namespace emulated {

/// Work of a stream, which answers what it has touched: done at the call (device.cpp), or whenever a seeded
/// scheduler comes to it (tests/fake_cuda/emulated.cpp).
void enqueue(cudaStream_t stream, const char* name, std::function<std::vector<Touched>()> work);

/// Runs `thread` in every thread of every block, in orders that the launch's number draws, so that a missing
/// barrier changes bits between two runs; and watches it (watch.h).
std::vector<Touched> run(Launch launch, dim3 grid, dim3 block, const std::function<void()>& thread);
/// The pieces of the device's memory, ascending; none: all memory is.
std::vector<Piece> device_memory();
/// Whether CUDA's headers were there to build it: memory that is known, and libraries' matmuls and attention.
bool has_fake_machine();
/// Counts a launch under its kernel's name. kernels/cuda/launch.cuh's check_launch calls it after each.
void launched(const char* kernel);
void wait_for_block();
void wait_for_warp();
std::uint64_t exchange_in_warp(std::uint64_t mine, int lane_mask);

inline constexpr std::size_t kSharedBytes = 227 << 10;  ///< Hopper's
extern unsigned char shared_memory[kSharedBytes];

/// The words of a kernel's argument, those that point into an operand as which one and where: two launches with the
/// same words do the same to their operands, but for what they read there.
template <class Argument>
void add_words(const Argument& argument, const std::vector<Touched>& operands,
               std::vector<std::uint64_t>& words) {
  std::uint64_t value[(sizeof argument + 7) / 8] = {};
  std::memcpy(value, &argument, sizeof argument);
  for (std::uint64_t word : value) {
    const auto* at = reinterpret_cast<const char*>(word);
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (operands[i].begin > at || at >= operands[i].end) continue;
      word = (i + 1) << 48 | static_cast<std::uint64_t>(at - operands[i].begin);
      break;
    }
    words.push_back(word);
  }
}

template <class... Args, class Kernel>
void start(const char* name, dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
           Kernel kernel, const Args&... args) {
  Launch launch{name, shared_bytes, operands_of_call(), {}};
  launch.form = {typeid(Kernel).hash_code(), typeid(std::tuple<Args...>).hash_code()};
  if constexpr (!std::is_empty_v<Kernel>) add_words(kernel, launch.operands, launch.form);
  (add_words(args, launch.operands, launch.form), ...);
  enqueue(stream, name, [=] { return run(launch, grid, block, [&] { kernel(Args(args)...); }); });
}

}  // namespace emulated

inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  const std::vector touched{emulated::touched(to, bytes, true)};
  emulated::expect_operands("memset", touched);
  emulated::enqueue(stream, "memset", [=] {
    std::memset(to, value, bytes);
    return touched;
  });
  return cudaSuccess;
}

inline void __syncthreads() {
  emulated::wait_for_block();
  emulated::thread_met_block();
}
inline void __syncwarp() {
  emulated::wait_for_warp();
  emulated::thread_met_warp();
}
inline void __trap() {
  std::abort();
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int lane_mask) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = emulated::exchange_in_warp(bits, lane_mask);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T>
__attribute__((noinline, no_sanitize("thread"))) T atomicMin(T* to, std::type_identity_t<T> value) {
  emulated::watch_atomic(to, sizeof *to);
  const T before = *to;
  if (value < before) *to = value;
  return before;
}
template <class T>
__attribute__((noinline, no_sanitize("thread"))) T atomicMax(T* to, std::type_identity_t<T> value) {
  emulated::watch_atomic(to, sizeof *to);
  const T before = *to;
  if (before < value) *to = value;
  return before;
}
