// Attention sinks: B sequences, Q queries of each, H heads, K head width.
#include "kernels/cuda/forms.h"
#include "kernels/cuda/warp_sum.cuh"
#include "kernels/device_common/attention.h"

namespace sherd::kernels::cuda {
namespace {

using device_common::AttentionLayout;

constexpr int kThreads = device_common::kThreads;
constexpr int kGradientThreads = 512;
constexpr int kGradientWarps = kGradientThreads / 32;
constexpr int kRowsAtATime = 4;

// One warp for one query of one head.
template <class T, class Sink>
__global__ void __launch_bounds__(kThreads)
    join_sinks(const AttentionLayout at, const Sink* sinks, T* out, float* lse) {
  const std::int64_t row =
      (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;  // (b Q + q) H + h
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= at.B * at.Q * at.H) return;
  const std::int64_t h = row % at.H, b = row / at.H / at.Q, q = row / at.H % at.Q;
  float* statistic = lse + at.statistic(b, h) + q;
  float joined = *statistic;
  const float kept = device_common::join_sink(device_common::widen(sinks[h]), joined);
  __syncwarp();  // all lanes have read what the first one overwrites
  T* to = out + at.out(b, h) + q * at.out_row();
  for (std::int64_t c = lane; c < at.K; c += 32) {
    to[c] = device_common::narrow<T>(kept * device_common::widen(to[c]));
  }
  if (lane == 0) *statistic = joined;
}

// A block has a head; its warps share the head's queries, some at a time so that enough loads are on
// their way, and their sums are added in order.
template <class T, class Gradient>
__global__ void __launch_bounds__(kGradientThreads)
    sinks_gradient(const AttentionLayout at, const T* sinks, const T* out, const T* dout,
                   const float* lse, Gradient* d_sinks) {
  __shared__ double sums[kGradientWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t h = blockIdx.x;
  const float sink = device_common::widen(sinks[h]);
  double sum = 0.0;
  const std::int64_t rows = at.B * at.Q;
  for (std::int64_t first = warp * kRowsAtATime; first < rows;
       first += kGradientWarps * kRowsAtATime) {
    float dot[kRowsAtATime] = {};
    for (std::int64_t c = lane; c < at.K; c += 32) {
#pragma unroll
      for (int i = 0; i < kRowsAtATime; ++i) {
        const std::int64_t row = first + i;
        if (row >= rows) continue;
        const std::int64_t from = at.out(row / at.Q, h) + row % at.Q * at.out_row() + c;
        dot[i] += device_common::widen(dout[from]) * device_common::widen(out[from]);
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsAtATime; ++i) {
      const std::int64_t row = first + i;
      const float of_row = lane_sum(dot[i]);
      if (row >= rows) continue;
      const float score = sink - lse[at.statistic(row / at.Q, h) + row % at.Q];
      sum -= static_cast<double>(device_common::fast_exp(score)) * static_cast<double>(of_row);
    }
  }
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0.0;
  for (int w = 0; w < kGradientWarps; ++w) total += sums[w];
  d_sinks[h] = device_common::narrow<Gradient>(static_cast<float>(total));
}

}  // namespace

void join_attention_sinks(Stream& stream, const AttentionJoinSinks& args) {
  const AttentionLayout at(args.shape);
  const std::int64_t rows = at.B * at.Q * at.H;
  dispatch_float(args.out.dtype, [&]<class T>(T) {
    dispatch_float(args.sinks.dtype, [&]<class Sink>(Sink) {
      join_sinks<<<grid_of(device_common::ceil_div(rows, kThreads / 32)), kThreads, 0,
                   handle_of(stream)>>>(at, args.sinks.as<Sink>(), args.out.as<T>(),
                                        args.lse.as<float>());
    });
  });
  check_launch("join_attention_sinks");
}

void attention_sinks_gradient(Stream& stream, const AttentionSinksGradient& args) {
  const AttentionLayout at(args.shape);
  dispatch_float(args.out.dtype, [&]<class T>(T) {
    dispatch_float(args.d_sinks.dtype, [&]<class Gradient>(Gradient) {
      sinks_gradient<<<grid_of(at.H), kGradientThreads, 0, handle_of(stream)>>>(
          at, args.sinks.as<T>(), args.out.as<T>(), args.dout.as<T>(), args.lse.as<float>(),
          args.d_sinks.as<Gradient>());
    });
  });
  check_launch("attention_sinks_gradient");
}

}  // namespace sherd::kernels::cuda
