#include "kernels/device_common/rotary.h"

#include <algorithm>

#include "kernels/cuda/forms.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/device_common/attention.h"

namespace sherd::kernels::cuda {
namespace {

constexpr int kWidestHead = kWidestGpuHead;  // what attention is computed of

// The frequencies of a head's pairs travel with the launch.
struct Frequencies {
  double of_pair[kWidestHead / 2];
};

__global__ void fill_table(float* table, std::int64_t positions, std::int64_t half,
                           const Frequencies frequencies, double factor) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < positions * half; i += step) {
    const std::int64_t position = i / half, j = i % half;
    const double frequency = frequencies.of_pair[j];
    const double angle = static_cast<double>(position) * frequency;
    const double length = frequency == 0.0 ? 1.0 : factor;  // pairs that aren't turned stay
    table[2 * position * half + j] = static_cast<float>(length * cos(angle));
    table[(2 * position + 1) * half + j] = static_cast<float>(length * sin(angle));
  }
}

__global__ void fill_growth(float* table, std::int64_t numel, std::int64_t half, double growth,
                            std::int64_t step_length) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < numel;
       i += step) {
    const std::int64_t position = i / (2 * half), steps = (position + 1) / step_length;
    const double factor = 1.0 + growth * log1p(static_cast<double>(steps));
    table[i] = i % (2 * half) < half ? static_cast<float>(factor) : 0.0f;
  }
}

}  // namespace

void query_growth_table(Stream& stream, const Tensor& table, std::int64_t head_width,
                        const RotaryFrequencies& growth) {
  const auto blocks = static_cast<unsigned>(device_common::flat_blocks(table.numel, 1));
  fill_growth<<<blocks, device_common::kThreads, 0, handle_of(stream)>>>(
      table.as<float>(), table.numel, head_width / 2, growth.query_growth, growth.query_step);
  check_launch("query_growth_table");
}

void rotary_table(Stream& stream, const Tensor& table, std::int64_t positions,
                  const std::vector<double>& frequencies, double factor) {
  const std::int64_t half = std::ssize(frequencies);
  if (half > kWidestHead / 2) {
    throw UsageError("attention heads of width {} can't be rotated on GPUs; the widest is {}",
                     2 * half, kWidestHead);
  }
  Frequencies own{};
  std::copy(frequencies.begin(), frequencies.end(), own.of_pair);
  const auto blocks = static_cast<unsigned>(device_common::flat_blocks(positions * half, 1));
  fill_table<<<blocks, device_common::kThreads, 0, handle_of(stream)>>>(
      table.as<float>(), positions, half, own, factor);
  check_launch("rotary_table");
}

void rotary(Stream& stream, const Rotary& args) {
  dispatch_float(args.qkv.dtype, [&]<class T>(T) {
    constexpr int N = device_common::pack_of<T>();
    const std::int64_t rotated = args.query_heads + (args.queries_only ? 0 : args.kv_heads);
    const device_common::Rotate<T> work{args.qkv.as<T>(),
                                        args.table.as<float>(),
                                        args.token_positions.as<std::int32_t>(),
                                        args.positions,
                                        rotated,
                                        args.query_heads + 2 * args.kv_heads,
                                        args.head_width / 2,
                                        args.inverse ? -1.0f : 1.0f};
    const bool packs = device_common::allow_packs(work.qkv, work.table) && work.half % N == 0;
    launch_flat<N>(stream, "rotary", work.num_pairs(args.sequences * args.positions), packs, work);
  });
}

}  // namespace sherd::kernels::cuda
