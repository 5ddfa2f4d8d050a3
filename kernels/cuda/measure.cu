#include <numbers>

#include "kernels/cuda/forms.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/device_common/pointwise.h"

namespace sherd::kernels::cuda {
namespace {

// Sixteen threads for one block of elements; the tree over their sums is the CPU's.
template <class T>
__global__ void square_blocks(const T* x, std::int64_t numel, std::int64_t num_blocks,
                              double* partial) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t block = thread / device_common::kSumLanes;
  const auto lane = static_cast<int>(thread % device_common::kSumLanes);
  double sum = block < num_blocks ? device_common::lane_of_squares(x, numel, block, lane) : 0.0;
  for (const int offset : {4, 8, 1, 2}) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (lane == 0 && block < num_blocks) partial[block] = sum;
}

constexpr int kAddThreads = 1024;

// The partial sums in their order, which is one thread's work; all threads fetch the next tile for
// it meanwhile. A billion elements are 250,000 partial sums, one or two milliseconds of additions.
__global__ void __launch_bounds__(kAddThreads)
    add_partials(const double* partial, std::int64_t num_blocks, double* out) {
  __shared__ double tile[kAddThreads];
  double total = 0.0;
  double next = threadIdx.x < num_blocks ? partial[threadIdx.x] : 0.0;
  for (std::int64_t first = 0; first < num_blocks; first += kAddThreads) {
    __syncthreads();  // until all threads have added the last tile
    tile[threadIdx.x] = next;
    __syncthreads();
    const std::int64_t i = first + kAddThreads + threadIdx.x;
    next = i < num_blocks ? partial[i] : 0.0;
    if (threadIdx.x == 0) {
      const std::int64_t rest = num_blocks - first;
      const int count = rest < kAddThreads ? static_cast<int>(rest) : kAddThreads;
#pragma unroll 8
      for (int k = 0; k < count; ++k) total += tile[k];
    }
  }
  if (threadIdx.x == 0) *out = total;
}

// One block: what is added are a micro-batch's losses, some thousands.
constexpr int kSumThreads = 1024;

__global__ void __launch_bounds__(kSumThreads)
    sum_values(const float* x, std::int64_t numel, bool add, double* out) {
  __shared__ double scratch[32];
  double total = 0.0;
  for (std::int64_t i = threadIdx.x; i < numel; i += kSumThreads)
    total += static_cast<double>(x[i]);
  total = block_sum(total, scratch);
  if (threadIdx.x == 0) *out = (add ? *out : 0.0) + total;
}

constexpr int kSearchBlocks = CudaStream::kMailboxBytes / sizeof(std::int64_t);

template <class T>
__global__ void search_non_finite(const T* x, std::int64_t numel, std::int64_t* lowest_of_block) {
  __shared__ long long lowest;
  if (threadIdx.x == 0) lowest = numel;
  __syncthreads();
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t found = device_common::first_non_finite(
      x, numel, thread, static_cast<std::int64_t>(gridDim.x) * blockDim.x);
  if (found < numel) atomicMin(&lowest, static_cast<long long>(found));
  __syncthreads();
  if (threadIdx.x == 0) lowest_of_block[blockIdx.x] = lowest;
}

// Box & Muller, as kernels/cpu/random_fill.cpp.
__global__ void normal_numbers(float* y, std::int64_t numel, RandomAddress address,
                               std::int64_t first_element, float mean, float stddev) {
  constexpr double kScale = 1.0 / 4294967296.0;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < numel;
       i += step) {
    const auto element = static_cast<std::uint64_t>(first_element + i);
    const RandomBlock block = random_block(address, element / 2);
    const bool odd = element % 2 != 0;
    const std::uint32_t a = odd ? block.word[2] : block.word[0];
    const std::uint32_t b = odd ? block.word[3] : block.word[1];
    const double radius = sqrt(-2.0 * log((a + 1.0) * kScale));
    const double normal = radius * cos(2.0 * std::numbers::pi * (b * kScale));
    y[i] = static_cast<float>(mean + static_cast<double>(stddev) * normal);
  }
}

}  // namespace

void sum_of_squares(Stream& stream, const ConstTensor& x, const Tensor& out,
                    const Tensor& workspace) {
  const std::int64_t num_blocks = device_common::ceil_div(x.numel, device_common::kSumBlock);
  auto* partial = workspace.as<double>();
  if (num_blocks > 0) {
    const unsigned grid = grid_of(
        device_common::ceil_div(num_blocks * device_common::kSumLanes, device_common::kThreads));
    dispatch_float(x.dtype, [&]<class T>(T) {
      square_blocks<<<grid, device_common::kThreads, 0, handle_of(stream)>>>(x.as<T>(), x.numel,
                                                                             num_blocks, partial);
    });
    check_launch("sum_of_squares");
  }
  add_partials<<<1, kAddThreads, 0, handle_of(stream)>>>(partial, num_blocks, out.as<double>());
  check_launch("sum_of_squares (partial sums)");
}

void sum(Stream& stream, const ConstTensor& x, const Tensor& out, bool add) {
  sum_values<<<1, kSumThreads, 0, handle_of(stream)>>>(x.as<float>(), x.numel, add,
                                                       out.as<double>());
  check_launch("sum");
}

std::int64_t find_non_finite(Stream& stream, const ConstTensor& x) {
  if (x.numel == 0) return -1;
  auto* lowest = static_cast<std::int64_t*>(cuda_stream(stream).mailbox());
  const std::int64_t wanted = device_common::flat_blocks(x.numel, 1);
  const int blocks = static_cast<int>(wanted < kSearchBlocks ? wanted : kSearchBlocks);
  dispatch_float(x.dtype, [&]<class T>(T) {
    search_non_finite<<<blocks, device_common::kThreads, 0, handle_of(stream)>>>(x.as<T>(), x.numel,
                                                                                 lowest);
  });
  check_launch("find_non_finite");
  stream.synchronize();
  std::int64_t first = x.numel;
  for (int block = 0; block < blocks; ++block)
    first = lowest[block] < first ? lowest[block] : first;
  return first == x.numel ? -1 : first;
}

void fill_normal(Stream& stream, const Tensor& out, const RandomAddress& address,
                 std::int64_t first_element, float mean, float stddev) {
  if (out.numel == 0) return;
  const auto blocks = static_cast<unsigned>(device_common::flat_blocks(out.numel, 1));
  normal_numbers<<<blocks, device_common::kThreads, 0, handle_of(stream)>>>(
      out.as<float>(), out.numel, address, first_element, mean, stddev);
  check_launch("fill_normal");
}

}  // namespace sherd::kernels::cuda
