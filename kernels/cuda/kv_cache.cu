// T new tokens, H query heads, G key/value heads, K head width, C positions of room. The cache has,
// head by head, the keys [C, K] and then the values [C, K].
//
// A block does one query of one head: each of its warps every eighth key that the query sees, with
// the softmax relative to the largest score so far; then the warps' shares are added in order.
#include "kernels/kv_cache.h"

#include "kernels/cuda/forms.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/device_common/attention.h"

namespace sherd::kernels::cuda {
namespace {

using device_common::fast_exp;
using device_common::SoftCap;

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;

struct Cached {
  std::int64_t H, G, K, room, first, window;
  float scale;
  SoftCap soft_cap;
  float* cache;

  explicit Cached(const CachedAttention& args)
      : H(args.shape.query_heads),
        G(args.shape.kv_heads),
        K(args.shape.head_width),
        room(args.shape.positions),
        first(args.first),
        window(args.shape.windowed() ? args.shape.window : args.shape.positions),
        scale(args.shape.score_scale()),
        soft_cap(args.shape.softcap),
        cache(args.cache.as<float>()) {}
  __device__ float* keys(std::int64_t g) const { return cache + 2 * g * room * K; }
  __device__ float* values(std::int64_t g) const { return cache + (2 * g + 1) * room * K; }
  __device__ std::int64_t packed_row() const { return (H + 2 * G) * K; }
};

// Element i of [T, 2, G, K].
template <class T>
__global__ void __launch_bounds__(kThreads) keep(const Cached a, const T* qkv, std::int64_t numel) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= numel) return;
  const std::int64_t c = i % a.K, g = i / a.K % a.G, t = i / (2 * a.G * a.K);
  const bool value = i / (a.K * a.G) % 2 == 1;
  const std::int64_t head = a.H + (value ? a.G : 0) + g;
  float* to = (value ? a.values(g) : a.keys(g)) + (a.first + t) * a.K + c;
  *to = device_common::widen(qkv[t * a.packed_row() + head * a.K + c]);
}

__device__ float warp_sum(float value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

template <int kChunks, class T>
__global__ void __launch_bounds__(kThreads)
    attend(const Cached a, const T* qkv, const T* sinks, T* out) {
  __shared__ float shares[kWarps][32 * kChunks], most_of[kWarps], sum_of[kWarps];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const std::int64_t t = blockIdx.x / a.H, h = blockIdx.x % a.H, g = h / (a.H / a.G);
  const std::int64_t q = a.first + t, begin = q - a.window + 1 > 0 ? q - a.window + 1 : 0;
  const T* own = qkv + t * a.packed_row() + h * a.K;
  float query[kChunks], share[kChunks] = {};
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int c = lane + 32 * i;
    query[i] = c < a.K ? device_common::widen(own[c]) : 0.0f;
  }
  float most = -device_common::kInfinity, sum = 0.0f;
  for (std::int64_t k = begin + warp; k <= q; k += kWarps) {
    const float *key = a.keys(g) + k * a.K, *value = a.values(g) + k * a.K;
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int c = lane + 32 * i;
      if (c < a.K) dot = fmaf(query[i], key[c], dot);
    }
    const float score = a.soft_cap.apply(warp_sum(dot) * a.scale);
    const float largest = score > most ? score : most;
    const float factor = most == -device_common::kInfinity ? 0.0f : fast_exp(most - largest);
    const float p = fast_exp(score - largest);
    most = largest;
    sum = fmaf(sum, factor, p);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int c = lane + 32 * i;
      if (c < a.K) share[i] = fmaf(p, value[c], share[i] * factor);
    }
  }
#pragma unroll
  for (int i = 0; i < kChunks; ++i) shares[warp][lane + 32 * i] = share[i];
  if (lane == 0) {
    most_of[warp] = most;
    sum_of[warp] = sum;
  }
  __syncthreads();
  float largest = most_of[0], total = 0.0f;  // the first warp has seen a key
  for (int w = 1; w < kWarps; ++w) largest = most_of[w] > largest ? most_of[w] : largest;
  float factor[kWarps];
  for (int w = 0; w < kWarps; ++w) {
    factor[w] = sum_of[w] == 0.0f ? 0.0f : fast_exp(most_of[w] - largest);
    total = fmaf(sum_of[w], factor[w], total);
  }
  if (sinks != nullptr) {
    float lse = largest + device_common::fast_log(total);
    total /= device_common::join_sink(device_common::widen(sinks[h]), lse);
  }
  for (std::int64_t c = threadIdx.x; c < a.K; c += kThreads) {
    float result = 0.0f;
    for (int w = 0; w < kWarps; ++w) result = fmaf(shares[w][c], factor[w], result);
    out[(t * a.H + h) * a.K + c] = device_common::narrow<T>(result / total);
  }
}

}  // namespace

void cached_attention(Stream& stream, const CachedAttention& args) {
  const Cached a(args);
  dispatch_float(args.qkv.dtype, [&]<class T>(T) {
    const T* qkv = args.qkv.as<T>();
    const std::int64_t numel = args.count * 2 * a.G * a.K;
    keep<<<grid_of(device_common::ceil_div(numel, kThreads)), kThreads, 0, handle_of(stream)>>>(
        a, qkv, numel);
    check_launch("cached_attention (keep)");
    device_common::dispatch_head_width<32>(a.K, [&]<int kChunks>() {
      attend<kChunks><<<grid_of(args.count * a.H), kThreads, 0, handle_of(stream)>>>(
          a, qkv, args.sinks.as<T>(), args.out.as<T>());
    });
  });
  check_launch("cached_attention");
}

}  // namespace sherd::kernels::cuda
