#include "kernels/cuda/row_blocks.h"

#include "kernels/cuda/launch.cuh"

namespace sherd::kernels::cuda {
namespace {

// A block adds 32 columns: each of its warps every 32nd partial sum, in order, then one warp the
// warps' sums, in order.
constexpr int kLanes = 32;

template <class G>
__global__ void __launch_bounds__(kLanes* kLanes)
    add_blocks(const BlockSums sums, std::int64_t width, bool add, G* out) {
  __shared__ float lanes[kLanes][kLanes];
  const unsigned column = threadIdx.x % kLanes, lane = threadIdx.x / kLanes;
  const std::int64_t d = static_cast<std::int64_t>(blockIdx.x) * kLanes + column;
  float sum = 0.0f;
  if (d < width) {
#pragma unroll 8
    for (std::int64_t block = lane; block < sums.blocks; block += kLanes) {
      sum += sums.partial[block * sums.stride + d];
    }
  }
  lanes[lane][column] = sum;
  __syncthreads();
  if (lane != 0 || d >= width) return;
  for (int other = 1; other < kLanes; ++other) sum += lanes[other][column];
  out[d] = device_common::narrow<G>(add ? device_common::widen(out[d]) + sum : sum);
}

}  // namespace

void add_row_blocks(Stream& stream, const char* what, const BlockSums& sums, bool add,
                    const Tensor& out) {
  const unsigned grid = grid_of(device_common::ceil_div(out.numel, kLanes));
  dispatch_float(out.dtype, [&]<class G>(G) {
    add_blocks<<<grid, kLanes * kLanes, 0, handle_of(stream)>>>(sums, out.numel, add, out.as<G>());
  });
  check_launch(what);
}

}  // namespace sherd::kernels::cuda
