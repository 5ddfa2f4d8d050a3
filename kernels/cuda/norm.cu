// T tokens (rows), D width. A block does a row after the other; sums run over its threads in an
// order that D alone decides, sums over rows in one that T and D decide. A thread reads back only
// what it has written itself.
#include "kernels/norm.h"

#include "kernels/cuda/forms.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_blocks.h"
#include "kernels/device_common/dropout.h"
#include "kernels/device_common/norm_blocks.h"

namespace sherd::kernels::cuda {
namespace {

using device_common::load_wide;
using device_common::Mask;
using device_common::store_narrow;

template <class T>
struct ForwardRows {
  const T *residual, *branch, *weight, *bias;
  T *residual_out, *y;
  float *mean, *rstd;
  Mask mask;
  std::int64_t width;
  float eps, weight_offset, branch_scale;
  bool centred;
};

constexpr int kMostThreads = 512;  // device_common::row_threads

// The row of a block, and where a thread's packs of N of its columns begin: elements.
template <int N>
struct RowThread {
  std::int64_t row, start, begin, step;

  __device__ explicit RowThread(std::int64_t width)
      : row(blockIdx.x),
        start(row * width),
        begin(static_cast<std::int64_t>(threadIdx.x) * N),
        step(static_cast<std::int64_t>(blockDim.x) * N) {}
};

template <int N, class T>
__global__ void __launch_bounds__(kMostThreads) forward_row(const ForwardRows<T> a) {
  __shared__ float scratch[32];
  const auto [row, start, begin, step] = RowThread<N>(a.width);
  const T* r = a.residual_out != nullptr ? a.residual_out : a.residual;
  float sum = 0.0f;
  for (std::int64_t d = begin; d < a.width; d += step) {
    float x[N];
    load_wide<N>(a.residual + start + d, x);
    if (a.branch != nullptr) {
      float branch[N];
      load_wide<N>(a.branch + start + d, branch);
      a.mask.template apply<N>(start + d, branch);
      // What is normalised is r as stored.
      for (int i = 0; i < N; ++i)
        x[i] =
            device_common::widen(device_common::narrow<T>(fmaf(a.branch_scale, branch[i], x[i])));
    }
    if (a.residual_out != nullptr) store_narrow<N>(a.residual_out + start + d, x);
    for (int i = 0; i < N; ++i) sum += a.centred ? x[i] : x[i] * x[i];
  }
  const auto width = static_cast<float>(a.width);
  float mean = 0.0f, squares = block_sum(sum, scratch);
  if (a.centred) {
    // A second pass: squared differences from the mean don't cancel.
    mean = squares / width;
    float part = 0.0f;
    for (std::int64_t d = begin; d < a.width; d += step) {
      float x[N];
      load_wide<N>(r + start + d, x);
      for (int i = 0; i < N; ++i) part += (x[i] - mean) * (x[i] - mean);
    }
    squares = block_sum(part, scratch);
  }
  const float rstd = 1.0f / sqrtf(squares / width + a.eps);
  if (threadIdx.x == 0) {
    if (a.mean != nullptr) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
  for (std::int64_t d = begin; d < a.width; d += step) {
    float x[N], w[N], b[N] = {};
    load_wide<N>(r + start + d, x);
    load_wide<N>(a.weight + d, w);
    if (a.bias != nullptr) load_wide<N>(a.bias + d, b);
    for (int i = 0; i < N; ++i) {
      const float scaled = (x[i] - mean) * rstd * (w[i] + a.weight_offset);
      x[i] = a.bias != nullptr ? scaled + b[i] : scaled;
    }
    store_narrow<N>(a.y + start + d, x);
  }
}

template <class T>
struct BackwardRows {
  const T *residual, *weight, *dy, *d_residual_out;
  const float *mean, *rstd;
  T *d_residual_in, *d_branch;
  Mask mask;
  std::int64_t width;
  float weight_offset, branch_scale;
  bool centred;
};

// The branch's gradient, for N elements from `at` on, from that of its sum with the residual.
// (With BackwardRows as one argument, the f32 form of backward_rows would spill.)
template <int N, class T>
__device__ void store_branch_gradient(const Mask& mask, float branch_scale, T* d_branch,
                                      std::int64_t at, const float (&d_sum)[N]) {
  float d[N];
#pragma unroll
  for (int i = 0; i < N; ++i) d[i] = d_sum[i];
  mask.template apply<N>(at, d);
#pragma unroll
  for (int i = 0; i < N; ++i) d[i] *= branch_scale;
  store_narrow<N>(d_branch + at, d);
}

// Sums over the rows of one block, for N columns; out: the first of them in [2][D].
template <int N>
__device__ void store_sums(float* out, std::int64_t width, const float (&dweight)[N],
                           const float (&dbias)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    out[i] = dweight[i];
    out[width + i] = dbias[i];
  }
}

// The backward in one pass, for rows of at most P packs a thread: a row stays in registers, and
// each thread keeps the sums over its block's rows of its own columns. partial [blocks][2][D].
// Weights stay in registers where a thread has one pack; with two they would spill, and are found
// in the cache.
template <int N, int P, class T>
__global__ void __launch_bounds__(kMostThreads)
    backward_rows(const BackwardRows<T> a, std::int64_t tokens, float* partial) {
  __shared__ float scratch[64];
  const device_common::RowBlocks blocks(tokens, a.width);
  const std::int64_t block = blockIdx.x, end = blocks.end(block);
  std::int64_t column[P];
  float w[N] = {}, dweight[P][N] = {}, dbias[P][N] = {};
#pragma unroll
  for (int p = 0; p < P; ++p) {
    column[p] = (static_cast<std::int64_t>(p) * blockDim.x + threadIdx.x) * N;
    if (P == 1 && column[p] < a.width) load_wide<N>(a.weight + column[p], w);
  }
  for (std::int64_t row = blocks.begin(block); row < end; ++row) {
    const std::int64_t start = row * a.width;
    const float mean = a.centred ? a.mean[row] : 0.0f, rstd = a.rstd[row];
    float xhat[P][N] = {}, g[P][N] = {}, later[P][N] = {};
    float sum_g = 0.0f, sum_g_xhat = 0.0f;
#pragma unroll
    for (int p = 0; p < P; ++p) {
      if (column[p] >= a.width) continue;
      load_wide<N>(a.residual + start + column[p], xhat[p]);
      load_wide<N>(a.dy + start + column[p], g[p]);
      if (a.d_residual_out != nullptr) {
        load_wide<N>(a.d_residual_out + start + column[p], later[p]);
      }
      if (P > 1) load_wide<N>(a.weight + column[p], w);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        xhat[p][i] = (xhat[p][i] - mean) * rstd;
        dweight[p][i] += g[p][i] * xhat[p][i];
        dbias[p][i] += g[p][i];
        g[p][i] *= w[i] + a.weight_offset;
        sum_g += g[p][i];
        sum_g_xhat += g[p][i] * xhat[p][i];
      }
    }
    block_sums(sum_g, sum_g_xhat, scratch);
    const auto width = static_cast<float>(a.width);
    const float mean_g = a.centred ? sum_g / width : 0.0f, mean_g_xhat = sum_g_xhat / width;
#pragma unroll
    for (int p = 0; p < P; ++p) {
      if (column[p] >= a.width) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        later[p][i] += rstd * (g[p][i] - mean_g - xhat[p][i] * mean_g_xhat);
      }
      if (a.d_branch != nullptr)
        store_branch_gradient<N>(a.mask, a.branch_scale, a.d_branch, start + column[p], later[p]);
      store_narrow<N>(a.d_residual_in + start + column[p], later[p]);
    }
  }
  float* out = partial + block * 2 * a.width;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    if (column[p] < a.width) store_sums<N>(out + column[p], a.width, dweight[p], dbias[p]);
  }
}

// Wider rows: one block for one row here, and the sums over rows by a kernel of their own.
template <int N, class T>
__global__ void __launch_bounds__(kMostThreads) backward_wide_row(const BackwardRows<T> a) {
  __shared__ float scratch[32];
  const auto [row, start, begin, step] = RowThread<N>(a.width);
  const float mean = a.centred ? a.mean[row] : 0.0f, rstd = a.rstd[row];
  float sum_g = 0.0f, sum_g_xhat = 0.0f;
  for (std::int64_t d = begin; d < a.width; d += step) {
    float x[N], dy[N], w[N];
    load_wide<N>(a.residual + start + d, x);
    load_wide<N>(a.dy + start + d, dy);
    load_wide<N>(a.weight + d, w);
    for (int i = 0; i < N; ++i) {
      const float g = dy[i] * (w[i] + a.weight_offset);
      sum_g += g;
      sum_g_xhat += g * ((x[i] - mean) * rstd);
    }
  }
  const auto width = static_cast<float>(a.width);
  const float mean_g = a.centred ? block_sum(sum_g, scratch) / width : 0.0f;
  const float mean_g_xhat = block_sum(sum_g_xhat, scratch) / width;
  for (std::int64_t d = begin; d < a.width; d += step) {
    float x[N], dy[N], w[N];
    load_wide<N>(a.residual + start + d, x);
    load_wide<N>(a.dy + start + d, dy);
    load_wide<N>(a.weight + d, w);
    for (int i = 0; i < N; ++i) {
      const float xhat = (x[i] - mean) * rstd;
      x[i] = rstd * (dy[i] * (w[i] + a.weight_offset) - mean_g - xhat * mean_g_xhat);
    }
    if (a.d_residual_out != nullptr) {
      load_wide<N>(a.d_residual_out + start + d, dy);
      for (int i = 0; i < N; ++i) x[i] = dy[i] + x[i];
    }
    if (a.d_branch != nullptr)
      store_branch_gradient<N>(a.mask, a.branch_scale, a.d_branch, start + d, x);
    store_narrow<N>(a.d_residual_in + start + d, x);
  }
}

// The rows of one block, in order, for N columns of one thread: partial [blocks][2][D].
constexpr int kColumnThreads = 128;

template <int N, class T>
__global__ void __launch_bounds__(kColumnThreads)
    column_sums(const BackwardRows<T> a, std::int64_t tokens, float* partial) {
  const std::int64_t d = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (d >= a.width) return;
  const device_common::RowBlocks blocks(tokens, a.width);
  const std::int64_t block = blockIdx.y, end = blocks.end(block);
  float dweight[N] = {}, dbias[N] = {};
#pragma unroll 4
  for (std::int64_t row = blocks.begin(block); row < end; ++row) {
    const float mean = a.centred ? a.mean[row] : 0.0f, rstd = a.rstd[row];
    float x[N], dy[N];
    load_wide<N>(a.residual + row * a.width + d, x);
    load_wide<N>(a.dy + row * a.width + d, dy);
    for (int i = 0; i < N; ++i) {
      dweight[i] += dy[i] * ((x[i] - mean) * rstd);
      dbias[i] += dy[i];
    }
  }
  store_sums<N>(partial + block * 2 * a.width + d, a.width, dweight, dbias);
}

void finish(Stream& stream, const float* partial, const NormBackward& args, const Tensor& out) {
  const std::int64_t width = args.shape.width;
  add_row_blocks(stream, "norm_backward (weights)",
                 {partial, device_common::RowBlocks(args.shape.tokens, width).count(), 2 * width},
                 args.add_to_weight_gradients, out);
}

template <int N, class T>
void forward(Stream& stream, const NormShape& shape, const ForwardRows<T>& rows) {
  forward_row<N>
      <<<grid_of(shape.tokens), device_common::row_threads(device_common::ceil_div(shape.width, N)),
         0, handle_of(stream)>>>(rows);
  check_launch("norm_forward");
}

// The sums over rows first: d_residual_in may take the place of something that they read.
template <int N, class T>
void backward_of_wide_rows(Stream& stream, const NormShape& shape, const BackwardRows<T>& rows,
                           unsigned blocks, float* partial) {
  const dim3 grid(grid_of(device_common::ceil_div(shape.width, N * kColumnThreads)), blocks);
  column_sums<N><<<grid, kColumnThreads, 0, handle_of(stream)>>>(rows, shape.tokens, partial);
  check_launch("norm_backward (columns)");
  backward_wide_row<N><<<grid_of(shape.tokens), kMostThreads, 0, handle_of(stream)>>>(rows);
}

template <int N, class T>
void backward(Stream& stream, const NormBackward& args, const BackwardRows<T>& rows) {
  const NormShape& shape = args.shape;
  const unsigned blocks = grid_of(device_common::RowBlocks(shape.tokens, shape.width).count());
  const std::int64_t packs = device_common::ceil_div(shape.width, N);
  auto* partial = static_cast<float*>(args.workspace.data);
  if (packs <= kMostThreads) {
    backward_rows<N, 1><<<blocks, device_common::row_threads(packs), 0, handle_of(stream)>>>(
        rows, shape.tokens, partial);
  } else if (packs <= 2 * kMostThreads) {
    backward_rows<N, 2>
        <<<blocks, kMostThreads, 0, handle_of(stream)>>>(rows, shape.tokens, partial);
  } else {
    backward_of_wide_rows<N>(stream, shape, rows, blocks, partial);
  }
  check_launch("norm_backward");
  finish(stream, partial, args, args.dweight);
  if (args.dbias) finish(stream, partial + shape.width, args, args.dbias);
}

}  // namespace

void norm_forward(Stream& stream, const NormForward& args) {
  if (args.shape.tokens == 0) return;
  dispatch_float(args.residual.dtype, [&]<class T>(T) {
    constexpr int N = device_common::pack_of<T>();
    const ForwardRows<T> rows{.residual = args.residual.as<T>(),
                              .branch = args.branch.as<T>(),
                              .weight = args.weight.as<T>(),
                              .bias = args.bias.as<T>(),
                              .residual_out = args.residual_out.as<T>(),
                              .y = args.y.as<T>(),
                              .mean = args.mean.as<float>(),
                              .rstd = args.rstd.as<float>(),
                              .mask = Mask(args.branch_dropout),
                              .width = args.shape.width,
                              .eps = args.shape.eps,
                              .weight_offset = args.shape.weight_offset,
                              .branch_scale = args.branch_scale,
                              .centred = args.shape.kind == NormKind::kLayerNorm};
    const bool packs =
        rows.width % N == 0 && device_common::allow_packs(rows.residual, rows.branch, rows.weight,
                                                          rows.bias, rows.residual_out, rows.y);
    packs ? forward<N>(stream, args.shape, rows) : forward<1>(stream, args.shape, rows);
  });
}

void norm_backward(Stream& stream, const NormBackward& args) {
  if (args.shape.tokens == 0) {  // sums over nothing
    finish(stream, nullptr, args, args.dweight);
    if (args.dbias) finish(stream, nullptr, args, args.dbias);
    return;
  }
  dispatch_float(args.dy.dtype, [&]<class T>(T) {
    constexpr int N = device_common::pack_of<T>();
    const bool centred = args.shape.kind == NormKind::kLayerNorm;
    const BackwardRows<T> rows{.residual = args.residual.as<T>(),
                               .weight = args.weight.as<T>(),
                               .dy = args.dy.as<T>(),
                               .d_residual_out = args.d_residual_out.as<T>(),
                               .mean = centred ? args.mean.as<float>() : nullptr,
                               .rstd = args.rstd.as<float>(),
                               .d_residual_in = args.d_residual_in.as<T>(),
                               .d_branch = args.d_branch.as<T>(),
                               .mask = Mask(args.branch_dropout),
                               .width = args.shape.width,
                               .weight_offset = args.shape.weight_offset,
                               .branch_scale = args.branch_scale,
                               .centred = centred};
    const bool packs =
        rows.width % N == 0 &&
        device_common::allow_packs(rows.residual, rows.weight, rows.dy, rows.d_residual_out,
                                   rows.d_residual_in, rows.d_branch);
    packs ? backward<N>(stream, args, rows) : backward<1>(stream, args, rows);
  });
}

}  // namespace sherd::kernels::cuda
