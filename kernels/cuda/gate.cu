// The gate of a shared expert: kernels/experts.h. A warp has a token's row.
#include "kernels/cuda/forms.h"
#include "kernels/cuda/warp_sum.cuh"
#include "kernels/device_common/math.h"

namespace sherd::kernels::cuda {
namespace {

constexpr int kThreads = 128, kRows = kThreads / 32;

__device__ std::int64_t own_row() {
  return static_cast<std::int64_t>(blockIdx.x) * kRows + threadIdx.x / 32;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    gate_logits_of_rows(std::int64_t tokens, std::int64_t width, const T* x, const T* gate,
                        float* logits) {
  const std::int64_t t = own_row();
  if (t >= tokens) return;  // a whole warp
  const float logit = lane_dot(gate, x + t * width, width);
  if (threadIdx.x % 32 == 0) logits[t] = logit;
}

template <class T>
__global__ void __launch_bounds__(kThreads) gate_scale_rows(std::int64_t tokens, std::int64_t width,
                                                            const float* logits, const T* x, T* y) {
  const std::int64_t t = own_row();
  if (t >= tokens) return;
  const float s = device_common::fast_sigmoid(logits[t]);
  for (std::int64_t i = t * width + threadIdx.x % 32; i < (t + 1) * width; i += 32) {
    y[i] = device_common::narrow<T>(device_common::widen(x[i]) * s);
  }
}

template <class T>
struct RowsBackward {
  std::int64_t tokens, width;
  const float* logits;
  const T *shared, *gate, *dy;
  T* d_shared;
  float *d_logits, *d_x;
};

template <class T>
__global__ void __launch_bounds__(kThreads) gate_backward_rows(const RowsBackward<T> a) {
  const std::int64_t t = own_row();
  if (t >= a.tokens) return;
  const float s = device_common::fast_sigmoid(a.logits[t]);
  const float d_logit =
      s * (1.0f - s) * lane_dot(a.dy + t * a.width, a.shared + t * a.width, a.width);
  if (threadIdx.x % 32 == 0) a.d_logits[t] = d_logit;
  for (std::int64_t i = threadIdx.x % 32; i < a.width; i += 32) {
    const std::int64_t at = t * a.width + i;
    a.d_shared[at] = device_common::narrow<T>(device_common::widen(a.dy[at]) * s);
    if (a.d_x != nullptr) a.d_x[at] += d_logit * device_common::widen(a.gate[i]);
  }
}

// A block has 32 columns; its threads share the tokens, a tile of them at a time, and the first 32
// add the tile in order.
template <class T, class R>
__global__ void __launch_bounds__(kThreads)
    gate_gradient_sums(std::int64_t tokens, std::int64_t width, const T* x, const float* d_logits,
                       bool add, R* d_gate) {
  __shared__ float tile[kThreads];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x % 32;
  float sum = 0.0f;
  for (std::int64_t first = 0; first < tokens; first += kRows) {
    const std::int64_t t = first + threadIdx.x / 32;
    __syncthreads();  // until all threads have added the last tile
    tile[threadIdx.x] = t < tokens && column < width
                            ? d_logits[t] * device_common::widen(x[t * width + column])
                            : 0.0f;
    __syncthreads();
    for (int i = 0; threadIdx.x < 32 && i < kRows && first + i < tokens; ++i) {
      sum += tile[i * 32 + threadIdx.x];
    }
  }
  if (threadIdx.x >= 32 || column >= width) return;
  if (add) sum = device_common::widen(d_gate[column]) + sum;
  d_gate[column] = device_common::narrow<R>(sum);
}

unsigned blocks_of(std::int64_t tokens) {
  return grid_of(device_common::ceil_div(tokens, kRows));
}

}  // namespace

void gate_logits(Stream& stream, const GateLogits& args) {
  dispatch_float(args.x.dtype, [&]<class T>(T) {
    gate_logits_of_rows<<<blocks_of(args.tokens), kThreads, 0, handle_of(stream)>>>(
        args.tokens, args.width, args.x.as<T>(), args.gate.as<T>(), args.logits.as<float>());
  });
  check_launch("gate_logits");
}

void gate_forward(Stream& stream, const GateForward& args) {
  dispatch_float(args.y.dtype, [&]<class T>(T) {
    gate_scale_rows<<<blocks_of(args.tokens), kThreads, 0, handle_of(stream)>>>(
        args.tokens, args.width, args.logits.as<float>(), args.shared.as<T>(), args.y.as<T>());
  });
  check_launch("gate_forward");
}

void gate_backward(Stream& stream, const GateBackward& args) {
  dispatch_float(args.dy.dtype, [&]<class T>(T) {
    const RowsBackward<T> work{
        args.tokens,         args.width,      args.logits.as<float>(), args.shared.as<T>(),
        args.gate.as<T>(),   args.dy.as<T>(), args.d_shared.as<T>(),   args.d_logits.as<float>(),
        args.d_x.as<float>()};
    gate_backward_rows<<<blocks_of(args.tokens), kThreads, 0, handle_of(stream)>>>(work);
  });
  check_launch("gate_backward");
}

void gate_weight_gradient(Stream& stream, const GateWeightGradient& args) {
  const unsigned blocks = grid_of(device_common::ceil_div(args.width, 32));
  dispatch_float(args.x.dtype, [&]<class T>(T) {
    dispatch_float(args.d_gate.dtype, [&]<class R>(R) {
      gate_gradient_sums<<<blocks, kThreads, 0, handle_of(stream)>>>(
          args.tokens, args.width, args.x.as<T>(), args.d_logits.as<float>(), args.add,
          args.d_gate.as<R>());
    });
  });
  check_launch("gate_weight_gradient");
}

}  // namespace sherd::kernels::cuda
