/// Rows of queries, keys and values in tiles of 32, for attention_tiles.cu.
#pragma once

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
using device_common::Merged;
using device_common::Sight;
using device_common::SoftCap;

constexpr int kTile = device_common::kAttentionTile;
constexpr int kLanes = 8;  // per row
constexpr int kThreads = kTile * kLanes;
constexpr int kOwnScores = kTile / kLanes;  // per thread
constexpr int kScorePitch = kTile + 1;

template <class T>
struct Arguments {
  AttentionLayout at;
  Sight sight;
  SoftCap soft_cap;
  Mask mask;
  float scale;
  const T *qkv, *keys_values, *out, *dout;  // keys_values: qkv, or separate from the queries
  const T* sinks;                           // null: none; of the forward
  T *out_written, *dqkv;
  float* out_of_block;  // for a block: instead of out_written; null: all keys are here
  bool merge;
  float* dkv;  // null: gradients of keys and values go to dqkv
  float* dq;   // for a block: gradients are added to this and to dkv
  float *lse, *dot;
};

// Loads 32 of a head's `rows` as f32, zero beyond their end. Rows are K + 1 apart, so that threads
// that read one column of several rows use different banks.
template <class T>
__device__ void load_tile(const T* head, std::int64_t row_stride, std::int64_t first,
                          std::int64_t rows, std::int64_t width, float* tile) {
  const int K = static_cast<int>(width);
  for (int i = static_cast<int>(threadIdx.x); i < kTile * K; i += kThreads) {
    const int r = i / K, c = i % K;
    tile[r * (K + 1) + c] =
        first + r < rows ? device_common::widen(head[(first + r) * row_stride + c]) : 0.0f;
  }
}
template <class T>
__device__ void load_queries(const Arguments<T>& a, std::int64_t b, std::int64_t h,
                             std::int64_t first, float* tile) {
  load_tile(a.qkv + a.at.query(b, h), a.at.packed_row(), first, a.at.Q, a.at.K, tile);
}
template <class T>
__device__ void load_douts(const Arguments<T>& a, std::int64_t b, std::int64_t h,
                           std::int64_t first, float* tile) {
  load_tile(a.dout + a.at.out(b, h), a.at.out_row(), first, a.at.Q, a.at.K, tile);
}
template <class T>
__device__ void load_keys(const Arguments<T>& a, std::int64_t b, std::int64_t g,
                          std::int64_t position, float* tile) {
  load_tile(a.keys_values + a.at.key(b, g), a.at.key_row(), position - a.at.first_key, a.at.N,
            a.at.K, tile);
}
template <class T>
__device__ void load_values(const Arguments<T>& a, std::int64_t b, std::int64_t g,
                            std::int64_t position, float* tile) {
  load_tile(a.keys_values + a.at.value(b, g), a.at.key_row(), position - a.at.first_key, a.at.N,
            a.at.K, tile);
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

template <int kChunks>
__device__ void add_row(const float (&sum)[kChunks], float scale, int K, int lane, float* row) {
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int c = lane + kLanes * i;
    if (c < K) row[c] += scale * sum[i];
  }
}

// Writes a block's result, merged with the row's existing values if requested.
template <int kChunks>
__device__ void merge_row(const float (&sum)[kChunks], float scale, const Merged& by, bool merge,
                          int K, int lane, float* row) {
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int c = lane + kLanes * i;
    if (c < K) row[c] = by.result(merge ? row[c] : 0.0f, scale * sum[i]);
  }
}

__device__ inline float row_maximum(float value) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, value, offset);
    value = other > value ? other : value;
  }
  return value;
}
__device__ inline float row_sum(float value) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

// The first key that each of a tile's queries sees in its row, and the first that any of them sees.
struct TileSight {
  int first_key[kTile];

  __device__ void look(const Sight& sight, std::int64_t end, std::int64_t b, std::int64_t first) {
    if (threadIdx.x < kTile) {
      const std::int64_t q = first + threadIdx.x;
      first_key[threadIdx.x] = static_cast<int>(q < end ? sight.first_key(b, q) : q + 1);
    }
    __syncthreads();
  }
  __device__ std::int64_t first() const {
    int first = first_key[0];
    for (int i = 1; i < kTile; ++i) first = first_key[i] < first ? first_key[i] : first;
    return first;
  }
};

// One past the last key that a query of the tile sees; the tile begins with row `first`.
__device__ std::int64_t end_of_tile(const AttentionLayout& at, std::int64_t first) {
  const std::int64_t end = at.first_query + (first + kTile < at.Q ? first + kTile : at.Q);
  return end < at.end_of_keys() ? end : at.end_of_keys();
}

// A thread's row of a tile, and its place among the threads that share the row.
struct TileThread {
  int row = static_cast<int>(threadIdx.x) / kLanes;
  int lane = static_cast<int>(threadIdx.x) % kLanes;
};

// The tile of queries that a block does, a thread's query in it, and the keys that the query sees.
struct QueryTile : TileThread {
  AttentionTask task;
  std::int64_t first_row, own_row;       // among the rank's queries
  std::int64_t q0, q, g;                 // positions of these two; key/value head
  std::int64_t first_key, end_of_keys;   // of q; of all
  std::int64_t first_tile_key, end_key;  // from the first tile of keys to the end of the last

  // `seen` is shared by the block, which waits here until it is known.
  __device__ QueryTile(const AttentionLayout& at, const Sight& sight, TileSight& seen)
      : task(at.query_task(blockIdx.x)),
        first_row(task.tile * kTile),
        own_row(first_row + row),
        q0(at.first_query + first_row),
        q(q0 + row),
        g(at.group_of(task.head)) {
    seen.look(sight, at.first_query + at.Q, task.b, q0);
    first_key = seen.first_key[row];
    end_of_keys = at.end_of_keys();
    first_tile_key = at.tile_with(seen.first());
    end_key = end_of_tile(at, first_row);
  }
  __device__ bool sees(std::int64_t k) const { return first_key <= k && k <= q && k < end_of_keys; }
};

// What forward, backward and the search for the largest score have in common.
template <class T>
Arguments<T> arguments_of(const AttentionShape& shape, const auto& from) {
  Arguments<T> args{};
  args.at = AttentionLayout(shape, static_cast<bool>(from.keys_values));
  args.sight = Sight(shape, from.documents);
  args.soft_cap = SoftCap(shape.softcap);
  args.mask = Mask(from.dropout);
  args.scale = shape.score_scale();
  args.qkv = from.qkv.template as<T>();
  args.keys_values = args.at.keys_apart ? from.keys_values.template as<T>() : args.qkv;
  return args;
}

}  // namespace
}  // namespace sherd::kernels::cuda
