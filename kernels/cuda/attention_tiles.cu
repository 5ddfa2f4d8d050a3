// B sequences, S positions, H query heads, G key/value heads, K head width. A block does 32 rows
// of one head: queries (forward, dQ) or keys (dK and dV). Eight threads share a row: each forms
// four of the 32 scores of a tile, then the columns c = lane, lane + 8, ... of the row's result.
#include "kernels/cuda/attention_tiles.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/device_common/attention.h"
#include "kernels/device_common/dropout.h"
#include "kernels/device_common/math.h"

namespace sherd::kernels::cuda {
namespace {

using device_common::AttentionLayout;
using device_common::AttentionTask;
using device_common::fast_exp;
using device_common::Mask;
using device_common::Sight;
using device_common::SoftCap;

constexpr int kTile = device_common::kAttentionTile;
constexpr int kLanes = 8;  // of a row
constexpr int kThreads = kTile * kLanes;
constexpr int kOwnScores = kTile / kLanes;  // of a thread
constexpr int kScorePitch = kTile + 1;

template <class T>
struct Arguments {
  AttentionLayout at;
  Sight sight;
  SoftCap soft_cap;
  Mask mask;
  float scale;
  const T *qkv, *out, *dout;
  T *out_written, *dqkv;
  float *lse, *dot;
};

// 32 rows of a head as f32, zero beyond the sequence's end. Rows are K + 1 apart, so that threads
// that read one column of several rows meet different banks.
template <class T>
__device__ void load_tile(const T* head, std::int64_t row_stride, std::int64_t first,
                          const AttentionLayout& at, float* tile) {
  const int K = static_cast<int>(at.K);
  for (int i = static_cast<int>(threadIdx.x); i < kTile * K; i += kThreads) {
    const int r = i / K, c = i % K;
    tile[r * (K + 1) + c] =
        first + r < at.S ? device_common::widen(head[(first + r) * row_stride + c]) : 0.0f;
  }
}

// score[j] += <own, other rows 4 lane + j>
__device__ void dot_rows(const float* own, const float* others, int K, float (&score)[kOwnScores]) {
  for (int c = 0; c < K; ++c) {
    const float x = own[c];
    for (int j = 0; j < kOwnScores; ++j) {
      score[j] = fmaf(x, others[j * (K + 1) + c], score[j]);
    }
  }
}

// sum[i] += <weights[0..32), column lane + 8 i of tile>
template <int kChunks>
__device__ void add_weighted_rows(const float* weights, const float* tile, int K, int lane,
                                  float (&sum)[kChunks]) {
  for (int r = 0; r < kTile; ++r) {
    const float weight = weights[r];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int c = lane + kLanes * i;
      if (c < K) sum[i] = fmaf(weight, tile[r * (K + 1) + c], sum[i]);
    }
  }
}

template <int kChunks, class T>
__device__ void store_row(const float (&sum)[kChunks], float scale, int K, int lane, T* row) {
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int c = lane + kLanes * i;
    if (c < K) row[c] = device_common::narrow<T>(scale * sum[i]);
  }
}

__device__ float row_maximum(float value) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, value, offset);
    value = other > value ? other : value;
  }
  return value;
}
__device__ float row_sum(float value) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

// The first key that each of a tile's queries sees, and the first tile of keys that any of them does.
struct TileSight {
  int first_key[kTile];

  __device__ void look(const Sight& sight, std::int64_t positions, std::int64_t b,
                       std::int64_t first) {
    if (threadIdx.x < kTile) {
      const std::int64_t q = first + threadIdx.x;
      first_key[threadIdx.x] = static_cast<int>(q < positions ? sight.first_key(b, q) : q + 1);
    }
    __syncthreads();
  }
  __device__ std::int64_t first_tile() const {
    int first = first_key[0];
    for (int i = 1; i < kTile; ++i) first = first_key[i] < first ? first_key[i] : first;
    return first / kTile * kTile;
  }
};

extern __shared__ float shared_floats[];

// The softmax is kept relative to the largest score so far (Milakov & Gimelshein 2018).
template <int kChunks, class T>
__global__ void __launch_bounds__(kThreads) forward_tile(const Arguments<T> a) {
  const AttentionLayout& at = a.at;
  const int K = static_cast<int>(at.K), pitch = K + 1;
  float* query = shared_floats;
  float* key = query + kTile * pitch;
  float* value = key + kTile * pitch;
  float* weight = value + kTile * pitch;
  const int row = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const AttentionTask task = at.query_task(blockIdx.x);
  const std::int64_t q0 = task.tile * kTile, q = q0 + row, g = at.group_of(task.head);
  __shared__ TileSight seen;
  seen.look(a.sight, at.S, task.b, q0);
  const std::int64_t first_key = seen.first_key[row];
  load_tile(a.qkv + at.query(task.b, task.head), at.packed_row(), q0, at, query);
  float sum_out[kChunks] = {}, most = -device_common::kInfinity, sum = 0.0f;
  for (std::int64_t k0 = seen.first_tile(); k0 <= q0; k0 += kTile) {
    __syncthreads();  // whoever still reads the last tile
    load_tile(a.qkv + at.key(task.b, g), at.packed_row(), k0, at, key);
    load_tile(a.qkv + at.value(task.b, g), at.packed_row(), k0, at, value);
    __syncthreads();
    float p[kOwnScores] = {};
    dot_rows(query + row * pitch, key + kOwnScores * lane * pitch, K, p);
    const std::int64_t first = k0 + kOwnScores * lane;
    float largest = most;
    const auto is_seen = [&](int j) { return first_key <= first + j && first + j <= q; };
    for (int j = 0; j < kOwnScores; ++j) {
      p[j] = is_seen(j) ? a.soft_cap.apply(p[j] * a.scale) : -device_common::kInfinity;
      largest = p[j] > largest ? p[j] : largest;
    }
    largest = row_maximum(largest);
    // Nothing may have been seen yet: then there is nothing to be made relative to another score.
    const float factor = most == -device_common::kInfinity ? 0.0f : fast_exp(most - largest);
    most = largest;
    float share = 0.0f;
    for (int j = 0; j < kOwnScores; ++j) {
      p[j] = is_seen(j) ? fast_exp(p[j] - largest) : 0.0f;
      share += p[j];
    }
    sum = fmaf(sum, factor, row_sum(share));
    a.mask.template apply<kOwnScores>(at.element(task.b, task.head, q, first), p);
    for (int j = 0; j < kOwnScores; ++j) weight[row * kScorePitch + kOwnScores * lane + j] = p[j];
    __syncwarp();
    for (int i = 0; i < kChunks; ++i) sum_out[i] *= factor;
    add_weighted_rows(weight + row * kScorePitch, value, K, lane, sum_out);
  }
  if (q >= at.S) return;
  const bool padding = first_key > q;
  store_row(sum_out, padding ? 0.0f : 1.0f / sum, K, lane,
            a.out_written + at.out(task.b, task.head) + q * at.out_row());
  if (lane == 0) {
    a.lse[at.statistic(task.b, task.head) + q] =
        padding ? 0.0f : most + device_common::fast_log(sum);
  }
}

// D of the header: one warp for one query of one head.
template <class T>
__global__ void __launch_bounds__(kThreads) dot_kernel(const Arguments<T> a) {
  const AttentionLayout& at = a.at;
  const std::int64_t row =
      (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;  // (b S + q) H + h
  if (row >= at.B * at.S * at.H) return;
  float sum = 0.0f;
  for (std::int64_t c = threadIdx.x % 32; c < at.K; c += 32) {
    sum = fmaf(device_common::widen(a.dout[row * at.K + c]),
               device_common::widen(a.out[row * at.K + c]), sum);
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  }
  const std::int64_t h = row % at.H, token = row / at.H;
  if (threadIdx.x % 32 == 0) a.dot[at.statistic(token / at.S, h) + token % at.S] = sum;
}

// ds and drop(p) of one score; both exactly zero where it isn't seen.
__device__ void differentiate(const SoftCap& soft_cap, bool seen, float score, float dp, float lse,
                              float dot, float kept, float& p, float& ds) {
  const float capped = soft_cap.apply(score);
  const float probability = seen ? fast_exp(capped - lse) : 0.0f;
  p = probability * kept;
  const float slope = probability * ((kept > 0.0f ? dp * kept : 0.0f) - dot);
  ds = seen ? slope * soft_cap.slope(capped) : 0.0f;
}

// One tile of keys: every query head of its group in order, and of each the tiles that see it.
template <int kChunks, class T>
__global__ void __launch_bounds__(kThreads) backward_keys(const Arguments<T> a) {
  const AttentionLayout& at = a.at;
  const int K = static_cast<int>(at.K), pitch = K + 1;
  float* key = shared_floats;
  float* value = key + kTile * pitch;
  float* query = value + kTile * pitch;
  float* dout = query + kTile * pitch;
  float* weight = dout + kTile * pitch;
  float* d_score = weight + kTile * kScorePitch;
  float* lse = d_score + kTile * kScorePitch;
  float* dot = lse + kTile;
  const int row = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const AttentionTask task = at.key_task(blockIdx.x, at.G);
  const std::int64_t k0 = task.tile * kTile, k = k0 + row, group = at.H / at.G;
  __shared__ int end_of_queries[kTile];
  if (threadIdx.x < kTile) {
    const std::int64_t own = k0 + threadIdx.x;
    end_of_queries[threadIdx.x] =
        static_cast<int>(own < at.S ? a.sight.end_of_queries(task.b, own) : 0);
  }
  load_tile(a.qkv + at.key(task.b, task.head), at.packed_row(), k0, at, key);
  load_tile(a.qkv + at.value(task.b, task.head), at.packed_row(), k0, at, value);
  __syncthreads();
  const std::int64_t end = end_of_queries[row];
  int last_end = 0;
  for (const int of_key : end_of_queries) last_end = of_key > last_end ? of_key : last_end;
  float dk[kChunks] = {}, dv[kChunks] = {};
  for (std::int64_t h = task.head * group; h < (task.head + 1) * group; ++h) {
    for (std::int64_t q0 = k0; q0 < last_end; q0 += kTile) {
      __syncthreads();
      load_tile(a.qkv + at.query(task.b, h), at.packed_row(), q0, at, query);
      load_tile(a.dout + at.out(task.b, h), at.out_row(), q0, at, dout);
      if (threadIdx.x < kTile) {
        const std::int64_t q = q0 + threadIdx.x, from = at.statistic(task.b, h) + q;
        lse[threadIdx.x] = q < at.S ? a.lse[from] : 0.0f;
        dot[threadIdx.x] = q < at.S ? a.dot[from] : 0.0f;
      }
      __syncthreads();
      float score[kOwnScores] = {}, dp[kOwnScores] = {};
      const int first = kOwnScores * lane;
      dot_rows(key + row * pitch, query + first * pitch, K, score);
      dot_rows(value + row * pitch, dout + first * pitch, K, dp);
      for (int j = 0; j < kOwnScores; ++j) {
        const std::int64_t q = q0 + first + j;
        const int to = row * kScorePitch + first + j;
        differentiate(a.soft_cap, k <= q && q < end, score[j] * a.scale, dp[j], lse[first + j],
                      dot[first + j], a.mask.factor(at.element(task.b, h, q, k)), weight[to],
                      d_score[to]);
      }
      __syncwarp();
      add_weighted_rows(weight + row * kScorePitch, dout, K, lane, dv);
      add_weighted_rows(d_score + row * kScorePitch, query, K, lane, dk);
    }
  }
  if (k >= at.S) return;
  T* to = a.dqkv + k * at.packed_row();
  store_row(dk, a.scale, K, lane, to + at.key(task.b, task.head));
  store_row(dv, 1.0f, K, lane, to + at.value(task.b, task.head));
}

template <int kChunks, class T>
__global__ void __launch_bounds__(kThreads) backward_queries(const Arguments<T> a) {
  const AttentionLayout& at = a.at;
  const int K = static_cast<int>(at.K), pitch = K + 1;
  float* query = shared_floats;
  float* dout = query + kTile * pitch;
  float* key = dout + kTile * pitch;
  float* value = key + kTile * pitch;
  float* d_score = value + kTile * pitch;
  const int row = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const AttentionTask task = at.query_task(blockIdx.x);
  const std::int64_t q0 = task.tile * kTile, q = q0 + row, g = at.group_of(task.head);
  const bool inside = q < at.S;
  const std::int64_t statistic = at.statistic(task.b, task.head) + q;
  const float lse = inside ? a.lse[statistic] : 0.0f, dot = inside ? a.dot[statistic] : 0.0f;
  __shared__ TileSight seen;
  seen.look(a.sight, at.S, task.b, q0);
  const std::int64_t first_key = seen.first_key[row];
  load_tile(a.qkv + at.query(task.b, task.head), at.packed_row(), q0, at, query);
  load_tile(a.dout + at.out(task.b, task.head), at.out_row(), q0, at, dout);
  float dq[kChunks] = {};
  for (std::int64_t k0 = seen.first_tile(); k0 <= q0; k0 += kTile) {
    __syncthreads();
    load_tile(a.qkv + at.key(task.b, g), at.packed_row(), k0, at, key);
    load_tile(a.qkv + at.value(task.b, g), at.packed_row(), k0, at, value);
    __syncthreads();
    float score[kOwnScores] = {}, dp[kOwnScores] = {};
    const int first = kOwnScores * lane;
    dot_rows(query + row * pitch, key + first * pitch, K, score);
    dot_rows(dout + row * pitch, value + first * pitch, K, dp);
    for (int j = 0; j < kOwnScores; ++j) {
      const std::int64_t k = k0 + first + j;
      float p;
      differentiate(a.soft_cap, first_key <= k && k <= q, score[j] * a.scale, dp[j], lse, dot,
                    a.mask.factor(at.element(task.b, task.head, q, k)), p,
                    d_score[row * kScorePitch + first + j]);
    }
    __syncwarp();
    add_weighted_rows(d_score + row * kScorePitch, key, K, lane, dq);
  }
  if (!inside) return;
  store_row(dq, a.scale, K, lane, a.dqkv + at.query(task.b, task.head) + q * at.packed_row());
}

constexpr std::int64_t shared_bytes(std::int64_t K, int tiles, int scores, int rows) {
  return (tiles * kTile * (K + 1) + scores * kTile * kScorePitch + rows * kTile) * 4;
}

// More than 48 KiB of shared memory has to be asked for, kernel by kernel.
template <class T>
void launch(Stream& stream, const char* name, void (*kernel)(Arguments<T>), std::int64_t blocks,
            std::int64_t bytes, const Arguments<T>& args) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)),
             name);
  kernel<<<grid_of(blocks), kThreads, static_cast<std::size_t>(bytes), handle_of(stream)>>>(args);
  check_launch(name);
}

template <class T>
Arguments<T> arguments_of(const AttentionShape& shape, const Documents& documents,
                          const Dropout& dropout) {
  Arguments<T> args{};
  args.at = AttentionLayout(shape);
  args.sight = Sight(shape, documents);
  args.soft_cap = SoftCap(shape.softcap);
  args.mask = Mask(dropout);
  args.scale = shape.score_scale();
  return args;
}

__global__ void set_pair_kernel(std::int64_t* pair, std::int64_t first, std::int64_t second) {
  pair[0] = first;
  pair[1] = second;
}

}  // namespace

void attention_tiles_forward(Stream& stream, const AttentionForward& args) {
  dispatch_float(args.qkv.dtype, [&]<class T>(T) {
    Arguments<T> a = arguments_of<T>(args.shape, args.documents, args.dropout);
    a.qkv = args.qkv.as<T>();
    a.out_written = args.out.as<T>();
    a.lse = args.lse.as<float>();
    const std::int64_t K = args.shape.head_width;
    device_common::dispatch_head_width<kLanes>(K, [&]<int kChunks>() {
      launch(stream, "attention_forward", forward_tile<kChunks, T>, a.at.num_tasks(a.at.H),
             shared_bytes(K, 3, 1, 0), a);
    });
  });
}

void attention_tiles_backward(Stream& stream, const AttentionBackward& args) {
  const std::int64_t rows = args.shape.tokens() * args.shape.query_heads;
  CHECK(args.workspace.bytes() >= rows * 4, "attention: a workspace of {} bytes, {} needed",
        args.workspace.bytes(), rows * 4);
  dispatch_float(args.qkv.dtype, [&]<class T>(T) {
    Arguments<T> a = arguments_of<T>(args.shape, args.documents, args.dropout);
    a.qkv = args.qkv.as<T>();
    a.out = args.out.as<T>();
    a.dout = args.dout.as<T>();
    a.dqkv = args.dqkv.as<T>();
    a.lse = const_cast<float*>(args.lse.as<float>());
    a.dot = static_cast<float*>(args.workspace.data);
    dot_kernel<<<grid_of(device_common::ceil_div(rows, kThreads / 32)), kThreads, 0,
                 handle_of(stream)>>>(a);
    check_launch("attention_backward (dot)");
    const std::int64_t K = args.shape.head_width;
    device_common::dispatch_head_width<kLanes>(K, [&]<int kChunks>() {
      launch(stream, "attention_backward (keys)", backward_keys<kChunks, T>, a.at.num_tasks(a.at.G),
             shared_bytes(K, 4, 2, 2), a);
      launch(stream, "attention_backward (queries)", backward_queries<kChunks, T>,
             a.at.num_tasks(a.at.H), shared_bytes(K, 4, 1, 0), a);
    });
  });
}

void set_pair(Stream& stream, void* pair, std::int64_t first, std::int64_t second) {
  set_pair_kernel<<<1, 1, 0, handle_of(stream)>>>(static_cast<std::int64_t*>(pair), first, second);
  check_launch("set_pair");
}

}  // namespace sherd::kernels::cuda
