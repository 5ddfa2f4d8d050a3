#include "kernels/nf4.h"

#include "kernels/cuda/forms.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/nf4_codes.h"

namespace sherd::kernels::cuda {
namespace {

constexpr int kThreads = device_common::kThreads;

// A thread does a block of numbers.
__global__ void __launch_bounds__(kThreads)
    encode_blocks(const float* x, std::int64_t numel, const __grid_constant__ Nf4Tables tables,
                  std::uint8_t* codes, float* scales) {
  __shared__ float middles[15];
  if (threadIdx.x < 15) middles[threadIdx.x] = tables.middle[threadIdx.x];
  __syncthreads();
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t first = block * kNf4Block;
  if (first >= numel) return;
  const std::int64_t count = numel - first < kNf4Block ? numel - first : kNf4Block;
  scales[block] = nf4_encode_block(middles, x + first, count, codes + block * kNf4Block / 2);
}

// All scales in their order, a tile of them at a time: one block of threads, of which the first
// adds.
__global__ void __launch_bounds__(kThreads)
    mean_of_scales(const float* scales, std::int64_t count, float* mean) {
  __shared__ float tile[kThreads];
  double sum = 0.0;
  for (std::int64_t first = 0; first < count; first += kThreads) {
    const std::int64_t own = first + threadIdx.x;
    if (own < count) tile[threadIdx.x] = scales[own];
    __syncthreads();
    const std::int64_t rest = count - first;
    const int here = rest < kThreads ? static_cast<int>(rest) : kThreads;
    for (int i = 0; threadIdx.x == 0 && i < here; ++i) sum += static_cast<double>(tile[i]);
    __syncthreads();
  }
  if (threadIdx.x == 0) *mean = static_cast<float>(sum / static_cast<double>(count));
}

// A block of threads does a group of scales.
static_assert(kNf4Group == kThreads);

__global__ void __launch_bounds__(kThreads)
    encode_groups(const float* scales, std::int64_t count, const __grid_constant__ Nf4Tables tables,
                  std::uint8_t* codes, float* ranges) {
  __shared__ float middles[255], scratch[32];
  if (threadIdx.x < 255) middles[threadIdx.x] = tables.dynamic_middle[threadIdx.x];
  const std::int64_t own = static_cast<std::int64_t>(blockIdx.x) * kNf4Group + threadIdx.x;
  const float from_mean = own < count ? scales[own] - ranges[0] : 0.0f;
  const float most = block_max(fabsf(from_mean), scratch);  // waits for the middles too
  if (threadIdx.x == 0) ranges[1 + blockIdx.x] = most;
  if (own >= count) return;
  codes[own] = nearest_code(middles, 255, within_one(from_mean * nf4_inverse(most)));
}

template <class T>
struct Decode {
  const std::uint8_t *codes, *scale_codes;
  const float* ranges;
  Nf4Part part;  // which block of the tensor is which
  const float *values, *dynamic;
  T* out;

  // A pack lies in one block.
  template <int N>
  __device__ void apply(std::int64_t first) const {
    const std::int64_t block = first / kNf4Block;
    const float range = ranges[1 + part.number_of(block) / kNf4Group];
    const float from_mean = dynamic[scale_codes[block]] * range;
    const float scale = from_mean + ranges[0];
    float value[N];
    for (int i = 0; i < N; ++i) {
      value[i] = nf4_value(values, codes, first + i) * scale;
    }
    device_common::store_narrow<N>(out + first, value);
  }
};

template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    decode_blocks(std::int64_t numel, const __grid_constant__ Nf4Tables tables, Decode<T> work) {
  __shared__ float values[16], dynamic[256];
  if (threadIdx.x < 16) values[threadIdx.x] = tables.value[threadIdx.x];
  dynamic[threadIdx.x] = tables.dynamic[threadIdx.x];
  __syncthreads();
  work.values = values;
  work.dynamic = dynamic;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  device_common::walk_flat<N>(numel, thread, static_cast<std::int64_t>(gridDim.x) * kThreads, work);
}

}  // namespace

void nf4_encode(Stream& stream, const ConstTensor& x, const Tensor& codes, const Tensor& scales) {
  if (x.numel == 0) return;
  encode_blocks<<<grid_of(device_common::ceil_div(scales.numel, kThreads)), kThreads, 0,
                  handle_of(stream)>>>(x.as<float>(), x.numel, nf4_tables(),
                                       codes.as<std::uint8_t>(), scales.as<float>());
  check_launch("nf4_encode");
}

void nf4_encode_scales(Stream& stream, const ConstTensor& scales, const Tensor& codes,
                       const Tensor& ranges) {
  const auto* scale = scales.as<float>();
  auto* range = ranges.as<float>();
  mean_of_scales<<<1, kThreads, 0, handle_of(stream)>>>(scale, scales.numel, range);
  check_launch("nf4_encode_scales (mean)");
  encode_groups<<<grid_of(device_common::ceil_div(scales.numel, kNf4Group)), kThreads, 0,
                  handle_of(stream)>>>(scale, scales.numel, nf4_tables(), codes.as<std::uint8_t>(),
                                       range);
  check_launch("nf4_encode_scales");
}

void nf4_decode(Stream& stream, const Nf4Part& part, const Tensor& out) {
  if (out.numel == 0) return;
  dispatch_float(out.dtype, [&]<class T>(T) {
    constexpr int N = device_common::pack_of<T>();
    const Decode<T> work{part.codes.as<std::uint8_t>(),
                         part.scale_codes.as<std::uint8_t>(),
                         part.ranges.as<float>(),
                         part,
                         nullptr,
                         nullptr,
                         out.as<T>()};
    const bool packs = device_common::allow_packs(work.out);
    const auto blocks = static_cast<unsigned>(device_common::flat_blocks(out.numel, packs ? N : 1));
    if (packs) {
      decode_blocks<N><<<blocks, kThreads, 0, handle_of(stream)>>>(out.numel, nf4_tables(), work);
    } else {
      decode_blocks<1><<<blocks, kThreads, 0, handle_of(stream)>>>(out.numel, nf4_tables(), work);
    }
  });
  check_launch("nf4_decode");
}

}  // namespace sherd::kernels::cuda
