#include "kernels/block_codec.h"

#include "kernels/block_codes.h"
#include "kernels/cuda/forms.h"
#include "kernels/cuda/launch.cuh"

namespace sherd::kernels::cuda {
namespace {

constexpr int kThreads = device_common::kThreads;
constexpr int kLanes = 32;  // a warp does a block; each of its threads two neighbours
static_assert(kCodecBlock == 2 * kLanes);

// Two neighbouring elements: their codes, or their values.
struct Codes {
  int first = 0, second = 0;
};
struct Pair {
  float first = 0.0f, second = 0.0f;
};

// Elements that aren't there are 0.
__device__ Pair pair_at(const float* x, std::int64_t first, std::int64_t numel) {
  return {first < numel ? x[first] : 0.0f, first + 1 < numel ? x[first + 1] : 0.0f};
}

// All threads of a warp call it, with the elements of a block.
__device__ std::uint16_t scale_of_block(BlockFormat format, const Pair& x) {
  const std::uint32_t a = std::bit_cast<std::uint32_t>(x.first) & 0x7fffffffu;
  const std::uint32_t b = std::bit_cast<std::uint32_t>(x.second) & 0x7fffffffu;
  std::uint32_t most = a > b ? a : b;
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, most, offset);
    most = other > most ? other : most;
  }
  return scale_bits(format, most);
}

__device__ int code_in(std::uint16_t scale, float x) {
  if (scale == 0) return 0;
  return scale == kFlaggedScale ? flagged_code(x) : code_of(x, scale_value(scale));
}
__device__ float value_of(std::uint16_t scale, int code) {
  return scale == kFlaggedScale ? flagged_value(code)
                                : static_cast<float>(code) * scale_value(scale);
}

// What a rank has sent of `numel` elements.
struct Coded {
  BlockFormat format;
  std::int64_t numel;

  __device__ Pair at(const std::uint8_t* bytes, std::int64_t block, int lane) const {
    if (format == BlockFormat::kF32) {
      return pair_at(reinterpret_cast<const float*>(bytes), block * kCodecBlock + 2 * lane, numel);
    }
    const auto* scales =
        reinterpret_cast<const std::uint16_t*>(bytes + code_bytes(format, codec_blocks(numel)));
    const std::uint16_t scale = scales[block];
    const std::uint8_t* codes = bytes + code_bytes(format, block);
    Codes own;
    if (format == BlockFormat::kInt8) {
      own = {static_cast<std::int8_t>(codes[2 * lane]),
             static_cast<std::int8_t>(codes[2 * lane + 1])};
    } else {
      own = {first_code(codes[lane]), second_code(codes[lane])};
    }
    return {value_of(scale, own.first), value_of(scale, own.second)};
  }
};

struct Place {
  std::int64_t block;
  int lane;
};
__device__ Place own_place() {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  return {thread / kLanes, static_cast<int>(thread % kLanes)};
}

__global__ void __launch_bounds__(kThreads)
    encode_pairs(BlockFormat format, const float* x, std::int64_t numel, std::uint8_t* bytes) {
  const auto [block, lane] = own_place();
  if (block >= codec_blocks(numel)) return;
  const Pair own = pair_at(x, block * kCodecBlock + 2 * lane, numel);
  const std::uint16_t scale = scale_of_block(format, own);
  const Codes codes{code_in(scale, own.first), code_in(scale, own.second)};
  std::uint8_t* to = bytes + code_bytes(format, block);
  if (format == BlockFormat::kInt8) {
    to[2 * lane] = static_cast<std::uint8_t>(codes.first);
    to[2 * lane + 1] = static_cast<std::uint8_t>(codes.second);
  } else {
    to[lane] = two_codes(codes.first, codes.second);
  }
  if (lane > 0) return;
  auto* scales = reinterpret_cast<std::uint16_t*>(bytes + code_bytes(format, codec_blocks(numel)));
  scales[block] = scale;
}

__global__ void __launch_bounds__(kThreads)
    copy_floats(const float* x, std::int64_t numel, float* out) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < numel) out[i] = x[i];
}

template <class T>
__device__ void put(const Pair& sum, std::int64_t first, std::int64_t numel, T* out) {
  if (first < numel) out[first] = device_common::narrow<T>(sum.first);
  if (first + 1 < numel) out[first + 1] = device_common::narrow<T>(sum.second);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_pairs(const Coded coded, const std::uint8_t* bytes, std::int64_t stride, int count, T* out,
              bool onto_out) {
  const auto [block, lane] = own_place();
  if (block >= codec_blocks(coded.numel)) return;
  const std::int64_t first = block * kCodecBlock + 2 * lane;
  Pair total;
  if (onto_out) {
    if (first < coded.numel) total.first = device_common::widen(out[first]);
    if (first + 1 < coded.numel) total.second = device_common::widen(out[first + 1]);
  }
  for (int part = 0; part < count; ++part) {
    const Pair theirs = coded.at(bytes + part * stride, block, lane);
    if (part == 0 && !onto_out) {
      total = theirs;
    } else {
      total.first += theirs.first;
      total.second += theirs.second;
    }
  }
  put(total, first, coded.numel, out);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    round_pairs(BlockFormat format, const float* x, std::int64_t numel, T* out) {
  const auto [block, lane] = own_place();
  if (block >= codec_blocks(numel)) return;
  const std::int64_t first = block * kCodecBlock + 2 * lane;
  Pair own = pair_at(x, first, numel);
  if (format != BlockFormat::kF32) {
    const std::uint16_t scale = scale_of_block(format, own);
    own = {value_of(scale, code_in(scale, own.first)), value_of(scale, code_in(scale, own.second))};
  }
  put(own, first, numel, out);
}

unsigned grid_for(std::int64_t numel) {
  return grid_of(device_common::ceil_div(codec_blocks(numel) * kLanes, kThreads));
}

}  // namespace

void encode_blocks(Stream& stream, BlockFormat format, const ConstTensor& x, const Tensor& bytes) {
  if (x.numel == 0) return;
  if (format == BlockFormat::kF32) {
    copy_floats<<<grid_of(device_common::ceil_div(x.numel, kThreads)), kThreads, 0,
                  handle_of(stream)>>>(x.as<float>(), x.numel,
                                       reinterpret_cast<float*>(bytes.as<std::uint8_t>()));
  } else {
    encode_pairs<<<grid_for(x.numel), kThreads, 0, handle_of(stream)>>>(
        format, x.as<float>(), x.numel, bytes.as<std::uint8_t>());
  }
  check_launch("encode_blocks");
}

void sum_blocks(Stream& stream, BlockFormat format, const CodedParts& parts, const Tensor& out,
                bool onto_out) {
  if (out.numel == 0) return;
  dispatch_float(out.dtype, [&]<class T>(T) {
    sum_pairs<<<grid_for(out.numel), kThreads, 0, handle_of(stream)>>>(
        Coded{format, out.numel}, parts.first.as<std::uint8_t>(), parts.stride, parts.count,
        out.as<T>(), onto_out);
  });
  check_launch("sum_blocks");
}

void round_to_blocks(Stream& stream, BlockFormat format, const ConstTensor& x, const Tensor& out) {
  if (x.numel == 0) return;
  dispatch_float(out.dtype, [&]<class T>(T) {
    round_pairs<<<grid_for(x.numel), kThreads, 0, handle_of(stream)>>>(format, x.as<float>(),
                                                                       x.numel, out.as<T>());
  });
  check_launch("round_to_blocks");
}

}  // namespace sherd::kernels::cuda
