#include "kernels/cuda/group_offsets.h"

#include "kernels/cuda/launch.cuh"

namespace sherd::kernels::cuda {
namespace {

__global__ void __launch_bounds__(device_common::kThreads)
    write_group_offsets(const device_common::GroupOffsets offsets, int experts, std::int32_t* out) {
  const auto stride = static_cast<int>(blockDim.x);
  for (auto e = static_cast<int>(threadIdx.x); e < experts; e += stride) out[e] = offsets.begin[e];
}

}  // namespace

void set_group_offsets(Stream& stream, const device_common::GroupOffsets& offsets,
                       std::int64_t experts, std::int32_t* out) {
  write_group_offsets<<<1, device_common::kThreads, 0, handle_of(stream)>>>(
      offsets, static_cast<int>(experts), out);
  check_launch("experts (offsets)");
}

}  // namespace sherd::kernels::cuda
