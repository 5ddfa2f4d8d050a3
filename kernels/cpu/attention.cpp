// B sequences, S positions, H query heads, G key/value heads, K head width. A task is one query
// head of one sequence (forward) or one key/value head of one sequence with its group (backward);
// heads are first copied out of the packed rows as contiguous f32 [S, K].
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/lane_sum.h"
#include "kernels/cpu/random.h"
#include "kernels/cpu/vector_math.h"

namespace sherd::kernels::cpu {
namespace {

constexpr std::int64_t kTile = 64;  // queries (forward) or keys (backward) of one tile
constexpr std::int64_t kLine = 16;  // floats of a cache line

std::int64_t round_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b * b;
}

// Hands out pieces of one thread's scratch, each at a cache line.
class Scratch {
 public:
  explicit Scratch(float* begin) : next_(begin) {}
  float* take(std::int64_t count) {
    float* piece = next_;
    next_ += round_up(count, kLine);
    return piece;
  }

 private:
  float* next_;
};

// Where one head of one sequence lies in rows of `stride` elements.
template <class T>
struct HeadRows {
  T* first;
  std::int64_t stride;
};

enum class Part { kQuery, kKey, kValue };

template <class T>
HeadRows<T> packed_head(T* qkv, const AttentionShape& shape, std::int64_t b, Part part,
                        std::int64_t head) {
  const std::int64_t before = part == Part::kQuery ? 0
                              : part == Part::kKey ? shape.query_heads
                                                   : shape.query_heads + shape.kv_heads;
  const std::int64_t stride = shape.packed_width();
  return {qkv + b * shape.positions * stride + (before + head) * shape.head_width, stride};
}

template <class T>
HeadRows<T> out_head(T* out, const AttentionShape& shape, std::int64_t b, std::int64_t h) {
  const std::int64_t stride = shape.query_heads * shape.head_width;
  return {out + b * shape.positions * stride + h * shape.head_width, stride};
}

template <class T>
void load_head(const HeadRows<const T>& head, const AttentionShape& shape, float* out_SK) {
  widen_rows(head.first, head.stride, out_SK, shape.head_width, shape.positions, shape.head_width);
}

template <class T>
void store_head(const float* in_SK, const AttentionShape& shape, const HeadRows<T>& head) {
  narrow_rows(in_SK, shape.head_width, head.first, head.stride, shape.positions, shape.head_width);
}

float score_scale(const AttentionShape& shape) {
  return 1.0f / std::sqrt(static_cast<float>(shape.head_width));
}

// The dropout's element of (b, h, q, key 0).
std::int64_t element_of(const AttentionShape& shape, std::int64_t b, std::int64_t h,
                        std::int64_t q) {
  return ((b * shape.query_heads + h) * shape.positions + q) * shape.positions;
}

float row_maximum(const float* x, std::int64_t count) {
  float maximum = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : maximum)
  for (std::int64_t i = 0; i < count; ++i) maximum = x[i] > maximum ? x[i] : maximum;
  return maximum;
}

// x[i] = exp(x[i] - maximum), in place; returns their sum.
float exponentials(float* x, std::int64_t count, float maximum) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) x[i] = fast_exp(x[i] - maximum);
  LaneSum sum;
  sum.add_values(x, static_cast<int>(count));
  return sum.total();
}

// Zeroes what dropout drops; its scale is applied later, to a shorter row.
void drop(const Dropout& dropout, std::int64_t element, float* p, std::int64_t count) {
  const std::uint32_t threshold = dropout.threshold();
  for_each_block(0, count, [&](std::int64_t first, int block) {
    WordScratch scratch;
    const std::uint32_t* words =
        random_words(dropout.address, dropout.first_element + element + first, block, scratch);
#pragma omp simd
    for (int i = 0; i < block; ++i) p[first + i] = words[i] >= threshold ? p[first + i] : 0.0f;
  });
}

// Turns the scores of query q against keys [0, num_keys) into what multiplies the values: the
// exponentials, exactly zero where masked or dropped. Returns the factor that is still missing.
float softmax_row(const AttentionForward& args, std::int64_t first_element, std::int64_t q,
                  std::int64_t num_keys, float* row, float* lse) {
  const std::int64_t seen = q + 1, padded = round_up(seen, kLine);
  std::fill(row + seen, row + padded, -std::numeric_limits<float>::infinity());
  const float maximum = row_maximum(row, padded);
  const float sum = exponentials(row, padded, maximum);
  if (padded < num_keys) std::fill(row + padded, row + num_keys, 0.0f);
  *lse = maximum + fast_log(sum);
  if (!args.dropout.active()) return 1.0f / sum;
  drop(args.dropout, first_element, row, seen);
  return args.dropout.scale() / sum;
}

// One head of one sequence, tile of queries by tile; writes its rows of out and lse.
template <class T>
void forward_head(const AttentionForward& args, std::int64_t b, std::int64_t h, Scratch scratch) {
  const AttentionShape& shape = args.shape;
  const std::int64_t S = shape.positions, K = shape.head_width;
  const std::int64_t g = h / (shape.query_heads / shape.kv_heads);
  const std::int64_t stride = round_up(S, kLine);
  float* key_SK = scratch.take(S * K);
  float* value_SK = scratch.take(S * K);
  float* query = scratch.take(kTile * K);
  float* score = scratch.take(kTile * stride);
  const T* qkv = args.qkv.as<T>();
  load_head(packed_head(qkv, shape, b, Part::kKey, g), shape, key_SK);
  load_head(packed_head(qkv, shape, b, Part::kValue, g), shape, value_SK);
  const HeadRows<const T> queries = packed_head(qkv, shape, b, Part::kQuery, h);
  const HeadRows<T> out = out_head(args.out.as<T>(), shape, b, h);
  float* lse_S = args.lse.as<float>() + (b * shape.query_heads + h) * S;
  for (std::int64_t q0 = 0; q0 < S; q0 += kTile) {
    const std::int64_t rows = std::min(kTile, S - q0), keys = q0 + rows;
    widen_rows(queries.first + q0 * queries.stride, queries.stride, query, K, rows, K);
    gemm({.rows = rows,
          .columns = keys,
          .depth = K,
          .a = {query, K},
          .b = {key_SK, K, true},
          .c = score,
          .c_stride = stride,
          .scale = score_scale(shape)});
    float factor[kTile];
    for (std::int64_t r = 0; r < rows; ++r) {
      factor[r] = softmax_row(args, element_of(shape, b, h, q0 + r), q0 + r, keys,
                              score + r * stride, lse_S + q0 + r);
    }
    float* out_tile = query;  // the queries have done their work
    gemm({.rows = rows,
          .columns = K,
          .depth = keys,
          .a = {score, stride},
          .b = {value_SK, K},
          .c = out_tile,
          .c_stride = K});
    for (std::int64_t r = 0; r < rows; ++r) {
#pragma omp simd
      for (std::int64_t k = 0; k < K; ++k) out_tile[r * K + k] *= factor[r];
    }
    narrow_rows(out_tile, K, out.first + q0 * out.stride, out.stride, rows, K);
  }
}

// What the backward of one key/value head keeps in scratch.
struct BackwardBuffers {
  explicit BackwardBuffers(const AttentionShape& shape, Scratch scratch) {
    const std::int64_t S = shape.positions, head = S * shape.head_width;
    for (float** buffer :
         {&key_SK, &value_SK, &dkey_SK, &dvalue_SK, &query_SK, &dout_SK, &dquery_SK}) {
      *buffer = scratch.take(head);
    }
    p = scratch.take(S * kTile);
    ds = scratch.take(S * kTile);
    dot_S = scratch.take(S);
  }
  float *key_SK, *value_SK, *dkey_SK, *dvalue_SK;
  float *query_SK, *dout_SK, *dquery_SK;
  float *p, *ds;  // [S, tile]: of the queries that see a tile of keys
  float* dot_S;   // D of the header
};

// D[q] = <do[q,:], o[q,:]>, with o in `out_SK`.
void dot_rows(const AttentionShape& shape, const float* dout_SK, const float* out_SK,
              float* dot_S) {
  const std::int64_t K = shape.head_width;
  for (std::int64_t q = 0; q < shape.positions; ++q) {
    const float *a = dout_SK + q * K, *b = out_SK + q * K;
    LaneSum sum;
    sum.add(
        static_cast<int>(K), [=](int i) { return load8(a + i) * load8(b + i); },
        [=](int i) { return a[i] * b[i]; });
    dot_S[q] = sum.total();
  }
}

struct ScoreRow {
  float *p, *ds;  // scores and dp; become drop(p) and ds
  float lse, dot;
  std::int64_t element;  // of the dropout, for the first key
};

void differentiate_row(const Dropout& dropout, const ScoreRow& row, std::int64_t num_keys) {
  float *p = row.p, *ds = row.ds;
  const float lse = row.lse, dot = row.dot;
  if (!dropout.active()) {
#pragma omp simd
    for (std::int64_t k = 0; k < num_keys; ++k) {
      p[k] = fast_exp(p[k] - lse);
      ds[k] = p[k] * (ds[k] - dot);
    }
    return;
  }
  WordScratch scratch;
  const std::uint32_t* words = random_words(dropout.address, dropout.first_element + row.element,
                                            static_cast<int>(num_keys), scratch);
  const std::uint32_t threshold = dropout.threshold();
  const float scale = dropout.scale();
#pragma omp simd
  for (std::int64_t k = 0; k < num_keys; ++k) {
    const float probability = fast_exp(p[k] - lse);
    const float kept = words[k] >= threshold ? scale : 0.0f;
    ds[k] = probability * ((words[k] >= threshold ? ds[k] * scale : 0.0f) - dot);
    p[k] = probability * kept;
  }
}

struct BackwardTile {
  std::int64_t b, h, k0, num_keys;
  bool first_of_group;
};

// The scores and dp of the queries q >= k0 against the tile's keys, then in their place drop(p) and
// ds, exactly zero where masked.
void differentiate_tile(const AttentionBackward& args, const BackwardTile& tile,
                        const BackwardBuffers& buffers) {
  const AttentionShape& shape = args.shape;
  const std::int64_t S = shape.positions, K = shape.head_width, k0 = tile.k0;
  const auto multiply = [&](const float* rows, const float* keys, float scale, float* out) {
    gemm({.rows = S - k0,
          .columns = tile.num_keys,
          .depth = K,
          .a = {rows + k0 * K, K},
          .b = {keys + k0 * K, K, true},
          .c = out,
          .c_stride = kTile,
          .scale = scale});
  };
  multiply(buffers.query_SK, buffers.key_SK, score_scale(shape), buffers.p);
  multiply(buffers.dout_SK, buffers.value_SK, 1.0f, buffers.ds);
  const auto* lse_S = args.lse.as<float>() + (tile.b * shape.query_heads + tile.h) * S;
  for (std::int64_t q = k0; q < S; ++q) {
    const std::int64_t seen = std::min(tile.num_keys, q - k0 + 1);
    float* p = buffers.p + (q - k0) * kTile;
    float* ds = buffers.ds + (q - k0) * kTile;
    differentiate_row(
        args.dropout,
        {p, ds, lse_S[q], buffers.dot_S[q], element_of(shape, tile.b, tile.h, q) + k0}, seen);
    std::fill(p + seen, p + tile.num_keys, 0.0f);
    std::fill(ds + seen, ds + tile.num_keys, 0.0f);
  }
}

// dV and dK of the tile are whole sums over its queries; dQ gathers one addend per tile.
void multiply_tile(const AttentionShape& shape, const BackwardTile& tile,
                   const BackwardBuffers& buffers) {
  const std::int64_t K = shape.head_width, k0 = tile.k0, num_queries = shape.positions - k0;
  const auto over_queries = [&](const float* weights, const float* rows, float scale, float* out) {
    gemm({.rows = tile.num_keys,
          .columns = K,
          .depth = num_queries,
          .a = {weights, kTile, true},
          .b = {rows + k0 * K, K},
          .c = out + k0 * K,
          .c_stride = K,
          .scale = scale,
          .add = !tile.first_of_group});
  };
  over_queries(buffers.p, buffers.dout_SK, 1.0f, buffers.dvalue_SK);
  over_queries(buffers.ds, buffers.query_SK, score_scale(shape), buffers.dkey_SK);
  gemm({.rows = num_queries,
        .columns = K,
        .depth = tile.num_keys,
        .a = {buffers.ds, kTile},
        .b = {buffers.key_SK + k0 * K, K},
        .c = buffers.dquery_SK + k0 * K,
        .c_stride = K,
        .scale = score_scale(shape),
        .add = k0 > 0});
}

// One key/value head of one sequence: its query heads in order, and for each the tiles of keys.
template <class T>
void backward_group(const AttentionBackward& args, std::int64_t b, std::int64_t g,
                    Scratch scratch) {
  const AttentionShape& shape = args.shape;
  const std::int64_t S = shape.positions, group = shape.query_heads / shape.kv_heads;
  const BackwardBuffers buffers(shape, scratch);
  const T* qkv = args.qkv.as<T>();
  T* dqkv = args.dqkv.as<T>();
  load_head(packed_head(qkv, shape, b, Part::kKey, g), shape, buffers.key_SK);
  load_head(packed_head(qkv, shape, b, Part::kValue, g), shape, buffers.value_SK);
  for (std::int64_t h = g * group; h < (g + 1) * group; ++h) {
    load_head(packed_head(qkv, shape, b, Part::kQuery, h), shape, buffers.query_SK);
    load_head(out_head(args.dout.as<T>(), shape, b, h), shape, buffers.dout_SK);
    load_head(out_head(args.out.as<T>(), shape, b, h), shape, buffers.dquery_SK);
    dot_rows(shape, buffers.dout_SK, buffers.dquery_SK, buffers.dot_S);
    for (std::int64_t k0 = 0; k0 < S; k0 += kTile) {
      const BackwardTile tile{b, h, k0, std::min(kTile, S - k0), h == g * group};
      differentiate_tile(args, tile, buffers);
      multiply_tile(shape, tile, buffers);
    }
    store_head(buffers.dquery_SK, shape, packed_head(dqkv, shape, b, Part::kQuery, h));
  }
  store_head(buffers.dkey_SK, shape, packed_head(dqkv, shape, b, Part::kKey, g));
  store_head(buffers.dvalue_SK, shape, packed_head(dqkv, shape, b, Part::kValue, g));
}

Scratch checked_scratch(const Tensor& workspace, std::int64_t floats, int num_threads, int thread) {
  CHECK(workspace.bytes() >= floats * 4 * num_threads,
        "attention: a workspace of {} bytes, {} needed", workspace.bytes(),
        floats * 4 * num_threads);
  return Scratch(static_cast<float*>(workspace.data) + thread * floats);
}

}  // namespace

void attention_forward(ThreadTeam& team, const AttentionForward& args) {
  const std::int64_t H = args.shape.query_heads;
  const std::int64_t floats = attention_forward_scratch_floats(args.shape);
  dispatch_float(args.qkv.dtype, [&]<class T>(T) {
    team.parallel_for(args.shape.sequences * H, [&](std::int64_t task, int thread) {
      forward_head<T>(args, task / H, task % H,
                      checked_scratch(args.workspace, floats, team.num_threads(), thread));
    });
  });
}

void attention_backward(ThreadTeam& team, const AttentionBackward& args) {
  const std::int64_t G = args.shape.kv_heads;
  const std::int64_t floats = attention_backward_scratch_floats(args.shape);
  dispatch_float(args.qkv.dtype, [&]<class T>(T) {
    team.parallel_for(args.shape.sequences * G, [&](std::int64_t task, int thread) {
      backward_group<T>(args, task / G, task % G,
                        checked_scratch(args.workspace, floats, team.num_threads(), thread));
    });
  });
}

std::int64_t attention_forward_scratch_floats(const AttentionShape& shape) {
  const std::int64_t head = round_up(shape.positions * shape.head_width, kLine);
  return 2 * head + kTile * shape.head_width + kTile * round_up(shape.positions, kLine);
}

std::int64_t attention_backward_scratch_floats(const AttentionShape& shape) {
  const std::int64_t head = round_up(shape.positions * shape.head_width, kLine);
  return 7 * head + 2 * kTile * shape.positions + round_up(shape.positions, kLine);
}

}  // namespace sherd::kernels::cpu
