#include "kernels/device_common/rotary.h"

#include "kernels/cuda/forms.h"
#include "kernels/cuda/launch.cuh"

namespace sherd::kernels::cuda {
namespace {

__global__ void fill_table(float* table, std::int64_t positions, std::int64_t head_width,
                           double theta) {
  const std::int64_t half = head_width / 2;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < positions * half; i += step) {
    const std::int64_t position = i / half, j = i % half;
    const double exponent = -2.0 * static_cast<double>(j) / static_cast<double>(head_width);
    const double angle = static_cast<double>(position) * pow(theta, exponent);
    table[position * head_width + j] = static_cast<float>(cos(angle));
    table[position * head_width + half + j] = static_cast<float>(sin(angle));
  }
}

}  // namespace

void rotary_table(Stream& stream, const Tensor& table, std::int64_t positions,
                  std::int64_t head_width, double theta) {
  const auto blocks =
      static_cast<unsigned>(device_common::flat_blocks(positions * head_width / 2, 1));
  fill_table<<<blocks, device_common::kThreads, 0, handle_of(stream)>>>(
      table.as<float>(), positions, head_width, theta);
  check_launch("rotary_table");
}

void rotary(Stream& stream, const Rotary& args) {
  dispatch_float(args.qkv.dtype, [&]<class T>(T) {
    constexpr int N = device_common::pack_of<T>();
    const std::int64_t rotated = args.query_heads + args.kv_heads;
    const device_common::Rotate<T> work{args.qkv.as<T>(),
                                        args.table.as<float>(),
                                        args.positions,
                                        rotated,
                                        rotated + args.kv_heads,
                                        args.head_width / 2,
                                        args.inverse ? -1.0f : 1.0f};
    const bool packs = device_common::allow_packs(work.qkv, work.table) && work.half % N == 0;
    launch_flat<N>(stream, "rotary", work.num_pairs(args.sequences * args.positions), packs, work);
  });
}

}  // namespace sherd::kernels::cuda
