// B sequences, n queries and as many keys of a block, H query heads, G key/value heads, K head
// width, V columns of values that cuDNN computes.
#include "kernels/cuda/attention_blocks.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/device_common/attention.h"

namespace sherd::kernels::cuda {
namespace {

using device_common::AttentionLayout;
using device_common::Merged;

// One warp for one query of one head.
template <class T>
__global__ void __launch_bounds__(device_common::kThreads)
    merge_kernel(const AttentionLayout at, std::int64_t V, bool merge, const T* own,
                 const float* own_lse, float* out, float* lse) {
  const std::int64_t row =
      (static_cast<std::int64_t>(blockIdx.x) * device_common::kThreads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= at.B * at.Q * at.H) return;
  const std::int64_t h = row % at.H, b = row / at.H / at.Q, q = row / at.H % at.Q;
  float* statistic = lse + at.statistic(b, h) + q;
  const Merged merged(merge ? *statistic : -device_common::kInfinity,
                      own_lse[(b * at.H + h) * at.Q + q]);
  __syncwarp();  // all lanes have read what the first one overwrites
  float* to = out + at.out(b, h) + q * at.out_row();
  for (std::int64_t c = lane; c < at.K; c += 32) {
    // Columns that cuDNN leaves out are zeros.
    to[c] = c < V ? merged.result(merge ? to[c] : 0.0f, device_common::widen(own[row * at.K + c]))
                  : 0.0f;
  }
  if (lane == 0) *statistic = merged.statistic();
}

struct TakeLse {
  AttentionLayout at;
  const float* from;
  float* to;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    for (std::int64_t i = first; i < first + N; ++i) {
      const std::int64_t head = i / at.Q;
      to[i] = from[at.statistic(head / at.H, head % at.H) + i % at.Q];
    }
  }
};

// Queries' gradients come first in a row, then those of keys and values, as in qkv.
template <class T>
struct AddGradients {
  AttentionLayout at;
  std::int64_t V;
  const T* from;
  float *dq, *dkv;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    for (std::int64_t i = first; i < first + N; ++i) {
      const std::int64_t column = i % at.packed_row(), row = i / at.packed_row();
      const std::int64_t b = row / at.Q, place = row % at.Q, keys = column - at.out_row();
      float* to = keys < 0 ? dq + at.out(b, 0) + place * at.out_row() + column
                           : dkv + at.wide_key(b, 0) + place * 2 * at.G * at.K + keys;
      if (keys >= at.G * at.K && keys % at.K >= V) continue;
      *to += device_common::widen(from[i]);
    }
  }
};

}  // namespace

void merge_block(Stream& stream, const AttentionForward& args, const ConstTensor& out,
                 const ConstTensor& lse) {
  const AttentionLayout at(args.shape);
  const std::int64_t rows = at.B * at.Q * at.H;
  dispatch_float(out.dtype, [&]<class T>(T) {
    merge_kernel<T><<<grid_of(device_common::ceil_div(rows, device_common::kThreads / 32)),
                      device_common::kThreads, 0, handle_of(stream)>>>(
        at, device_common::cudnn_value_width(args.shape), args.merge, out.as<T>(), lse.as<float>(),
        args.out.as<float>(), args.lse.as<float>());
    check_launch("merge_block");
  });
}

void take_block_lse(Stream& stream, const AttentionBackward& args, const Tensor& lse) {
  launch_flat<1>(stream, "take_block_lse", lse.numel, false,
                 TakeLse{AttentionLayout(args.shape), args.lse.as<float>(), lse.as<float>()});
}

void add_block_gradients(Stream& stream, const AttentionBackward& args,
                         const ConstTensor& gradients) {
  dispatch_float(gradients.dtype, [&]<class T>(T) {
    launch_flat<1>(
        stream, "add_block_gradients", gradients.numel, false,
        AddGradients<T>{AttentionLayout(args.shape), device_common::cudnn_value_width(args.shape),
                        gradients.as<T>(), args.dq.as<float>(), args.dkv.as<float>()});
  });
}

}  // namespace sherd::kernels::cuda
