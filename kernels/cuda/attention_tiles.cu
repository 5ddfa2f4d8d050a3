// B sequences, S positions, Q of them with queries, H query heads, G key/value heads, K head width.
// A block does 32 rows of one head: queries (forward, dQ) or keys (dK and dV). Eight threads share
// a row: each forms four of the 32 scores of a tile, then the columns c = lane, lane + 8, ... of
// the row's result. Tiles of keys begin at multiples of 32 from the first key, wherever the queries
// do: so a query's sums have the same order.
#include "kernels/cuda/attention_tiles.h"

#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/launch.cuh"

namespace sherd::kernels::cuda {
namespace {

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
  __shared__ TileSight seen;
  const QueryTile own(at, a.sight, seen);
  const AttentionTask task = own.task;
  const int row = own.row, lane = own.lane;
  load_queries(a, task.b, task.head, own.first_row, query);
  float sum_out[kChunks] = {}, most = -device_common::kInfinity, sum = 0.0f;
  if (a.sinks != nullptr) {  // one more score, whose value is zero
    most = device_common::widen(a.sinks[task.head]);
    sum = 1.0f;
  }
  for (std::int64_t k0 = own.first_tile_key; k0 < own.end_key; k0 += kTile) {
    __syncthreads();  // whoever still reads the last tile
    load_keys(a, task.b, own.g, k0, key);
    load_values(a, task.b, own.g, k0, value);
    __syncthreads();
    float p[kOwnScores] = {};
    dot_rows(query + row * pitch, key + kOwnScores * lane * pitch, K, p);
    const std::int64_t first = k0 + kOwnScores * lane;
    float largest = most;
    for (int j = 0; j < kOwnScores; ++j) {
      p[j] = own.sees(first + j) ? a.soft_cap.apply(p[j] * a.scale) : -device_common::kInfinity;
      largest = p[j] > largest ? p[j] : largest;
    }
    largest = row_maximum(largest);
    // Nothing may have been seen yet: then there is nothing to be made relative to another score.
    const float factor = most == -device_common::kInfinity ? 0.0f : fast_exp(most - largest);
    most = largest;
    float share = 0.0f;
    for (int j = 0; j < kOwnScores; ++j) {
      p[j] = own.sees(first + j) ? fast_exp(p[j] - largest) : 0.0f;
      share += p[j];
    }
    sum = fmaf(sum, factor, row_sum(share));
    a.mask.template apply<kOwnScores>(at.element(task.b, task.head, own.q, first), p);
    for (int j = 0; j < kOwnScores; ++j) weight[row * kScorePitch + kOwnScores * lane + j] = p[j];
    __syncwarp();
    for (int i = 0; i < kChunks; ++i) sum_out[i] *= factor;
    add_weighted_rows(weight + row * kScorePitch, value, K, lane, sum_out);
  }
  float* lse = a.lse + at.statistic(task.b, task.head) + own.own_row;
  const bool inside = own.own_row < at.Q;
  if (a.out_of_block != nullptr) {
    const float statistic =
        sum > 0.0f ? most + device_common::fast_log(sum) : -device_common::kInfinity;
    const bool merge = inside && a.merge;
    const Merged merged(merge ? *lse : -device_common::kInfinity, statistic);
    __syncwarp();  // the row's lanes have read what one of them overwrites
    if (!inside) return;
    merge_row(sum_out, sum > 0.0f ? 1.0f / sum : 0.0f, merged, merge, K, lane,
              a.out_of_block + at.out(task.b, task.head) + own.own_row * at.out_row());
    if (lane == 0) *lse = merged.statistic();
    return;
  }
  if (!inside) return;
  const bool padding = own.first_key > own.q;
  store_row(sum_out, padding ? 0.0f : 1.0f / sum, K, lane,
            a.out_written + at.out(task.b, task.head) + own.own_row * at.out_row());
  if (lane == 0) *lse = padding ? 0.0f : most + device_common::fast_log(sum);
}

// D of the header: one warp for one query of one head.
template <class T>
__global__ void __launch_bounds__(kThreads) dot_kernel(const Arguments<T> a) {
  const AttentionLayout& at = a.at;
  const std::int64_t row =
      (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;  // (b Q + q) H + h
  if (row >= at.B * at.Q * at.H) return;
  const std::int64_t h = row % at.H, b = row / at.H / at.Q, q = row / at.H % at.Q;
  const std::int64_t from = at.out(b, h) + q * at.out_row();
  float sum = 0.0f;
  for (std::int64_t c = threadIdx.x % 32; c < at.K; c += 32) {
    sum = fmaf(device_common::widen(a.dout[from + c]), device_common::widen(a.out[from + c]), sum);
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  }
  if (threadIdx.x % 32 == 0) a.dot[at.statistic(b, h) + q] = sum;
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
  const auto [row, lane] = TileThread{};
  const AttentionTask task = at.key_task(blockIdx.x);
  const std::int64_t k0 = at.first_key + task.tile * kTile, k = k0 + row, group = at.H / at.G;
  __shared__ int end_of_queries[kTile];
  if (threadIdx.x < kTile) {
    const std::int64_t own = k0 + threadIdx.x;
    end_of_queries[threadIdx.x] =
        static_cast<int>(own < at.end_of_keys() ? a.sight.end_of_queries(task.b, own) : 0);
  }
  load_keys(a, task.b, task.head, k0, key);
  load_values(a, task.b, task.head, k0, value);
  __syncthreads();
  const std::int64_t end = end_of_queries[row];
  int last_end = 0;
  for (const int of_key : end_of_queries) last_end = of_key > last_end ? of_key : last_end;
  // Rows of queries: the tile with the first that sees a key, to the last that does.
  const std::int64_t first_row = k0 > at.first_query ? (k0 - at.first_query) / kTile * kTile : 0;
  const std::int64_t seeing = last_end - at.first_query, end_row = seeing < at.Q ? seeing : at.Q;
  float dk[kChunks] = {}, dv[kChunks] = {};
  for (std::int64_t h = task.head * group; h < (task.head + 1) * group; ++h) {
    for (std::int64_t row0 = first_row; row0 < end_row; row0 += kTile) {
      const std::int64_t q0 = at.first_query + row0;
      __syncthreads();
      load_queries(a, task.b, h, row0, query);
      load_douts(a, task.b, h, row0, dout);
      if (threadIdx.x < kTile) {
        const std::int64_t r = row0 + threadIdx.x, from = at.statistic(task.b, h) + r;
        lse[threadIdx.x] = r < at.Q ? a.lse[from] : 0.0f;
        dot[threadIdx.x] = r < at.Q ? a.dot[from] : 0.0f;
      }
      __syncthreads();
      float score[kOwnScores] = {}, dp[kOwnScores] = {};
      const int first = kOwnScores * lane;
      dot_rows(key + row * pitch, query + first * pitch, K, score);
      dot_rows(value + row * pitch, dout + first * pitch, K, dp);
      for (int j = 0; j < kOwnScores; ++j) {
        const std::int64_t q = q0 + first + j;
        const int to = row * kScorePitch + first + j;
        const bool seen = k <= q && q < end && row0 + first + j < at.Q;
        differentiate(a.soft_cap, seen, score[j] * a.scale, dp[j], lse[first + j], dot[first + j],
                      a.mask.factor(at.element(task.b, h, q, k)), weight[to], d_score[to]);
      }
      __syncwarp();
      add_weighted_rows(weight + row * kScorePitch, dout, K, lane, dv);
      add_weighted_rows(d_score + row * kScorePitch, query, K, lane, dk);
    }
  }
  if (k >= at.end_of_keys()) return;
  const std::int64_t own_row = task.tile * kTile + row;
  if (a.dkv != nullptr) {
    float* wide = a.dkv + at.wide_key(task.b, task.head) + own_row * 2 * at.G * at.K;
    if (a.dq != nullptr) {
      add_row(dk, a.scale, K, lane, wide);
      add_row(dv, 1.0f, K, lane, wide + at.G * at.K);
      return;
    }
    store_row(dk, a.scale, K, lane, wide);
    store_row(dv, 1.0f, K, lane, wide + at.G * at.K);
    return;
  }
  T* to = a.dqkv + own_row * at.packed_row();
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
  __shared__ TileSight seen;
  const QueryTile own(at, a.sight, seen);
  const AttentionTask task = own.task;
  const int row = own.row, lane = own.lane;
  const bool inside = own.own_row < at.Q;
  const std::int64_t statistic = at.statistic(task.b, task.head) + own.own_row;
  const float lse = inside ? a.lse[statistic] : 0.0f, dot = inside ? a.dot[statistic] : 0.0f;
  load_queries(a, task.b, task.head, own.first_row, query);
  load_douts(a, task.b, task.head, own.first_row, dout);
  float dq[kChunks] = {};
  for (std::int64_t k0 = own.first_tile_key; k0 < own.end_key; k0 += kTile) {
    __syncthreads();
    load_keys(a, task.b, own.g, k0, key);
    load_values(a, task.b, own.g, k0, value);
    __syncthreads();
    float score[kOwnScores] = {}, dp[kOwnScores] = {};
    const int first = kOwnScores * lane;
    dot_rows(query + row * pitch, key + first * pitch, K, score);
    dot_rows(dout + row * pitch, value + first * pitch, K, dp);
    for (int j = 0; j < kOwnScores; ++j) {
      const std::int64_t k = k0 + first + j;
      float p;
      differentiate(a.soft_cap, own.sees(k), score[j] * a.scale, dp[j], lse, dot,
                    a.mask.factor(at.element(task.b, task.head, own.q, k)), p,
                    d_score[row * kScorePitch + first + j]);
    }
    __syncwarp();
    add_weighted_rows(d_score + row * kScorePitch, key, K, lane, dq);
  }
  if (!inside) return;
  if (a.dq != nullptr) {
    return add_row(dq, a.scale, K, lane,
                   a.dq + at.out(task.b, task.head) + own.own_row * at.out_row());
  }
  store_row(dq, a.scale, K, lane,
            a.dqkv + at.query(task.b, task.head) + own.own_row * at.packed_row());
}

constexpr std::int64_t shared_bytes(std::int64_t K, int tiles, int scores, int rows) {
  return (tiles * kTile * (K + 1) + scores * kTile * kScorePitch + rows * kTile) * 4;
}

// More than 48 KiB of shared memory has to be asked for, kernel by kernel. Boards of compute
// capability 8.6, 8.9 and 12.0 have less than the tiles of the widest heads need.
template <class T>
void launch(Stream& stream, const char* name, void (*kernel)(Arguments<T>), std::int64_t blocks,
            std::int64_t bytes, const Arguments<T>& args) {
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaErrorInvalidValue) {
    throw UsageError(
        "{}: heads of this width need {} bytes of shared memory in Sherd's own kernels, more than "
        "this GPU has.",
        name, bytes);
  }
  check_cuda(error, name);
  kernel<<<grid_of(blocks), kThreads, static_cast<std::size_t>(bytes), handle_of(stream)>>>(args);
  check_launch(name);
}

__global__ void set_pair_kernel(std::int64_t* pair, std::int64_t first, std::int64_t second) {
  pair[0] = first;
  pair[1] = second;
}

}  // namespace

void attention_tiles_forward(Stream& stream, const AttentionForward& args) {
  dispatch_float(args.qkv.dtype, [&]<class T>(T) {
    Arguments<T> a = arguments_of<T>(args.shape, args);
    if (args.shape.block) {
      a.out_of_block = args.out.as<float>();
      a.merge = args.merge;
    } else {
      a.out_written = args.out.as<T>();
    }
    a.lse = args.lse.as<float>();
    a.sinks = args.sinks.as<T>();
    const std::int64_t K = args.shape.head_width;
    device_common::dispatch_head_width<kLanes>(K, [&]<int kChunks>() {
      launch(stream, "attention_forward", forward_tile<kChunks, T>, a.at.num_query_tasks(),
             shared_bytes(K, 3, 1, 0), a);
    });
  });
}

void attention_tiles_backward(Stream& stream, const AttentionBackward& args) {
  const std::int64_t statistics = args.shape.query_tokens() * args.shape.query_heads;
  SHERD_CHECK(args.workspace.bytes() >= statistics * 4,
              "attention: a workspace of {} bytes, {} needed", args.workspace.bytes(),
              statistics * 4);
  dispatch_float(args.qkv.dtype, [&]<class T>(T) {
    Arguments<T> a = arguments_of<T>(args.shape, args);
    a.dkv = args.dkv.as<float>();
    if (args.shape.block) a.dq = args.dq.as<float>();
    a.out = args.out.as<T>();
    a.dout = args.dout.as<T>();
    a.dqkv = args.dqkv.as<T>();
    a.lse = const_cast<float*>(args.lse.as<float>());
    a.dot = static_cast<float*>(args.workspace.data);
    const std::int64_t rows = a.at.B * a.at.Q * a.at.H;
    dot_kernel<<<grid_of(device_common::ceil_div(rows, kThreads / 32)), kThreads, 0,
                 handle_of(stream)>>>(a);
    check_launch("attention_backward (dot)");
    const std::int64_t K = args.shape.head_width;
    device_common::dispatch_head_width<kLanes>(K, [&]<int kChunks>() {
      launch(stream, "attention_backward (keys)", backward_keys<kChunks, T>, a.at.num_key_tasks(),
             shared_bytes(K, 4, 2, 2), a);
      launch(stream, "attention_backward (queries)", backward_queries<kChunks, T>,
             a.at.num_query_tasks(), shared_bytes(K, 4, 1, 0), a);
    });
  });
}

void set_pair(Stream& stream, void* pair, std::int64_t first, std::int64_t second) {
  set_pair_kernel<<<1, 1, 0, handle_of(stream)>>>(static_cast<std::int64_t*>(pair), first, second);
  check_launch("set_pair");
}

}  // namespace sherd::kernels::cuda
