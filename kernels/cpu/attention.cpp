// B sequences, S positions, H query heads, G key/value heads, K head width. A task is one query
// head of one sequence (forward) or one key/value head of one sequence with its group (backward).
//
// The products of a tile are too small for OpenBLAS, which would pack both factors anew for each:
// half of its time. Here the right factors are packed once per head, in panels, and the left ones
// are read where they lie.
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/lane_sum.h"
#include "kernels/cpu/random.h"
#include "kernels/cpu/tile_product.h"
#include "kernels/cpu/vector_math.h"

namespace sherd::kernels::cpu {
namespace {

constexpr std::int64_t kStrip = 24;        // rows or keys at a time along the diagonal
constexpr std::int64_t kTile = 192;        // the backward's keys at a time
constexpr std::int64_t kQueries = kDepth;  // and its queries
constexpr std::int64_t kLine = 16;         // floats of a cache line
static_assert(kStrip % kTileRows == 0 && kTile % kStrip == 0 && kTile <= kQueries);

std::int64_t round_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b * b;
}

// Hands out pieces of one thread's scratch, each at a cache line; without memory it only counts.
class Scratch {
 public:
  explicit Scratch(float* begin = nullptr) : begin_(begin) {}
  float* take(std::int64_t count) {
    const std::int64_t at = taken_;
    taken_ += round_up(count, kLine);
    return begin_ ? begin_ + at : nullptr;
  }
  std::int64_t taken() const { return taken_; }

 private:
  float* begin_;
  std::int64_t taken_ = 0;
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

// The head's rows as f32: where they lie, or copied to `copy_SK`.
template <class T>
MatrixView view_head(const HeadRows<const T>& head, const AttentionShape& shape, float* copy_SK) {
  if constexpr (std::is_same_v<T, float>) return {head.first, head.stride};
  load_head(head, shape, copy_SK);
  return {copy_SK, shape.head_width};
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

struct ForwardBuffers {
  ForwardBuffers(const AttentionShape& shape, Scratch& scratch) {
    const std::int64_t S = shape.positions, K = shape.head_width;
    score_stride = round_up(S, kTileColumns);
    copy_SK = scratch.take(S * K);
    key_panels = scratch.take(panel_floats(K, S));
    value_panels = scratch.take(panel_floats(S, K));
    query = scratch.take(kStrip * K);
    out = scratch.take(kStrip * K);
    score = scratch.take(kStrip * score_stride);
  }
  std::int64_t score_stride;
  float *copy_SK, *key_panels, *value_panels;
  float *query, *out, *score;  // of one strip of queries
};

// The scores of `rows` queries against all keys up to the tile's last, and a few beyond.
void score_queries(const AttentionShape& shape, const MatrixView& query, std::int64_t rows,
                   std::int64_t keys, const ForwardBuffers& buffers) {
  multiply_panels({.first = {.depth = shape.head_width,
                             .a = query.data,
                             .a_row = query.stride,
                             .b = buffers.key_panels,
                             .c = buffers.score,
                             .c_stride = buffers.score_stride,
                             .scale = score_scale(shape)},
                   .b_panel = shape.head_width * kTileColumns},
                  rows, round_up(keys, kTileColumns));
}

void weigh_values(const AttentionShape& shape, std::int64_t rows, std::int64_t keys,
                  const ForwardBuffers& buffers) {
  multiply_panels({.first = {.depth = keys,
                             .a = buffers.score,
                             .a_row = buffers.score_stride,
                             .b = buffers.value_panels,
                             .c = buffers.out,
                             .c_stride = shape.head_width},
                   .b_panel = shape.positions * kTileColumns},
                  rows, shape.head_width);
}

// One head of one sequence, strip of queries by strip; writes its rows of out and lse.
template <class T>
void forward_head(const AttentionForward& args, std::int64_t b, std::int64_t h, Scratch scratch) {
  const AttentionShape& shape = args.shape;
  const std::int64_t S = shape.positions, K = shape.head_width;
  const std::int64_t g = h / (shape.query_heads / shape.kv_heads);
  const ForwardBuffers buffers(shape, scratch);
  const T* qkv = args.qkv.as<T>();
  pack_columns_of_transpose(
      view_head(packed_head(qkv, shape, b, Part::kKey, g), shape, buffers.copy_SK), K, S,
      buffers.key_panels);
  pack_columns(view_head(packed_head(qkv, shape, b, Part::kValue, g), shape, buffers.copy_SK), S, K,
               buffers.value_panels);
  const HeadRows<const T> queries = packed_head(qkv, shape, b, Part::kQuery, h);
  const HeadRows<T> out = out_head(args.out.as<T>(), shape, b, h);
  float* lse_S = args.lse.as<float>() + (b * shape.query_heads + h) * S;
  for (std::int64_t q0 = 0; q0 < S; q0 += kStrip) {
    const std::int64_t rows = std::min(kStrip, S - q0), keys = q0 + rows;
    widen_rows(queries.first + q0 * queries.stride, queries.stride, buffers.query, K, rows, K);
    score_queries(shape, {buffers.query, K}, rows, keys, buffers);
    float factor[kStrip];
    for (std::int64_t r = 0; r < rows; ++r) {
      factor[r] = softmax_row(args, element_of(shape, b, h, q0 + r), q0 + r, keys,
                              buffers.score + r * buffers.score_stride, lse_S + q0 + r);
    }
    weigh_values(shape, rows, keys, buffers);
    for (std::int64_t r = 0; r < rows; ++r) {
#pragma omp simd
      for (std::int64_t k = 0; k < K; ++k) buffers.out[r * K + k] *= factor[r];
    }
    narrow_rows(buffers.out, K, out.first + q0 * out.stride, out.stride, rows, K);
  }
}

// What the backward of one key/value head keeps in scratch: panels whose depth is the head's width
// (_KS) or the positions (_SK), rows of gradients, and p and ds of one tile.
struct BackwardBuffers {
  BackwardBuffers(const AttentionShape& shape, Scratch& scratch) {
    const std::int64_t S = shape.positions, K = shape.head_width;
    for (float** panels : {&key_KS, &value_KS}) *panels = scratch.take(panel_floats(K, S));
    for (float** panels : {&key_SK, &query_SK, &dout_SK}) {
      *panels = scratch.take(panel_floats(S, K));
    }
    for (float** rows : {&query_copy, &dout_copy, &dquery, &dkey, &dvalue}) {
      *rows = scratch.take(S * K);
    }
    p = scratch.take(kQueries * kTile);
    ds = scratch.take(kQueries * kTile);
    dot_S = scratch.take(S);
  }
  float *key_KS, *value_KS, *key_SK, *query_SK, *dout_SK;
  float *query_copy, *dout_copy, *dquery, *dkey, *dvalue;
  float *p, *ds;  // [queries, tile]
  float* dot_S;   // D of the header
};

// D[q] = <do[q,:], o[q,:]>, with o in `out_SK`.
void dot_rows(const AttentionShape& shape, const MatrixView& dout_SK, const MatrixView& out_SK,
              float* dot_S) {
  const std::int64_t K = shape.head_width;
  for (std::int64_t q = 0; q < shape.positions; ++q) {
    const float *a = dout_SK.from_row(q).data, *b = out_SK.from_row(q).data;
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

// The keys [k0, k0 + num_keys) and the queries [q0, q0 + num_queries) of one head, q0 >= k0.
struct BackwardTile {
  std::int64_t b, h, k0, num_keys, q0, num_queries;
  bool first_of_group;
};

// A query head's rows.
struct QueryHead {
  MatrixView query, dout;
};

// Calls `strip(row, rows, keys)` for the tile's queries, of which the last sees `keys` keys: few at
// a time where that number grows.
template <class Strip>
void for_each_strip(const BackwardTile& tile, Strip&& strip) {
  for (std::int64_t row = 0, rows = 0; row < tile.num_queries; row += rows) {
    const std::int64_t before = tile.q0 + row - tile.k0;  // keys that all of them see, but one
    rows = std::min(before < tile.num_keys ? kStrip : kQueries, tile.num_queries - row);
    strip(row, rows, std::min(tile.num_keys, before + rows));
  }
}

// The scores and dp of the tile, then in their place drop(p) and ds, exactly zero where masked.
void differentiate_tile(const AttentionBackward& args, const BackwardTile& tile,
                        const QueryHead& head, const BackwardBuffers& buffers) {
  const AttentionShape& shape = args.shape;
  const std::int64_t S = shape.positions, K = shape.head_width, k0 = tile.k0, q0 = tile.q0;
  const auto multiply = [&](const MatrixView& matrix, const float* panels, float scale,
                            float* out) {
    for_each_strip(tile, [&](std::int64_t row, std::int64_t rows, std::int64_t keys) {
      multiply_panels({.first = {.depth = K,
                                 .a = matrix.from_row(q0 + row).data,
                                 .a_row = matrix.stride,
                                 .b = panels + k0 * K,
                                 .c = out + row * kTile,
                                 .c_stride = kTile,
                                 .scale = scale},
                       .b_panel = K * kTileColumns},
                      rows, round_up(keys, kTileColumns));
    });
  };
  multiply(head.query, buffers.key_KS, score_scale(shape), buffers.p);
  multiply(head.dout, buffers.value_KS, 1.0f, buffers.ds);
  const auto* lse_S = args.lse.as<float>() + (tile.b * shape.query_heads + tile.h) * S;
  for (std::int64_t q = q0; q < q0 + tile.num_queries; ++q) {
    const std::int64_t seen = std::min(tile.num_keys, q - k0 + 1);
    float* p = buffers.p + (q - q0) * kTile;
    float* ds = buffers.ds + (q - q0) * kTile;
    differentiate_row(
        args.dropout,
        {p, ds, lse_S[q], buffers.dot_S[q], element_of(shape, tile.b, tile.h, q) + k0}, seen);
    std::fill(p + seen, p + tile.num_keys, 0.0f);
    std::fill(ds + seen, ds + tile.num_keys, 0.0f);
  }
}

// Adds the tile's part to dV and dK of its keys and to dQ of its queries.
void accumulate_tile(const AttentionShape& shape, const BackwardTile& tile,
                     const BackwardBuffers& buffers) {
  const std::int64_t S = shape.positions, K = shape.head_width, k0 = tile.k0, q0 = tile.q0;
  // A key is seen by the queries from its own on.
  const std::int64_t strip = q0 == k0 ? kStrip : kTile;
  const auto over_queries = [&](const float* weights, const float* panels, float scale,
                                float* out) {
    for (std::int64_t key = 0; key < tile.num_keys; key += strip) {
      const std::int64_t unseen = q0 == k0 ? key : 0;
      multiply_panels({.first = {.depth = tile.num_queries - unseen,
                                 .a = weights + unseen * kTile + key,
                                 .a_row = 1,
                                 .a_depth = kTile,
                                 .b = panels + (q0 + unseen) * kTileColumns,
                                 .c = out + (k0 + key) * K,
                                 .c_stride = K,
                                 .scale = scale,
                                 .add = !tile.first_of_group || q0 > k0},
                       .b_panel = S * kTileColumns},
                      std::min(strip, tile.num_keys - key), K);
    }
  };
  over_queries(buffers.p, buffers.dout_SK, 1.0f, buffers.dvalue);
  over_queries(buffers.ds, buffers.query_SK, score_scale(shape), buffers.dkey);
  for_each_strip(tile, [&](std::int64_t row, std::int64_t rows, std::int64_t keys) {
    multiply_panels({.first = {.depth = keys,
                               .a = buffers.ds + row * kTile,
                               .a_row = kTile,
                               .b = buffers.key_SK + k0 * kTileColumns,
                               .c = buffers.dquery + (q0 + row) * K,
                               .c_stride = K,
                               .scale = score_scale(shape),
                               .add = k0 > 0},
                     .b_panel = S * kTileColumns},
                    rows, K);
  });
}

// One query head: tiles of keys, and for each the queries that see them.
template <class T>
void backward_head(const AttentionBackward& args, std::int64_t b, std::int64_t h,
                   const BackwardBuffers& buffers) {
  const AttentionShape& shape = args.shape;
  const std::int64_t S = shape.positions, K = shape.head_width;
  const QueryHead head{
      view_head(packed_head(args.qkv.as<T>(), shape, b, Part::kQuery, h), shape,
                buffers.query_copy),
      view_head(out_head(args.dout.as<T>(), shape, b, h), shape, buffers.dout_copy)};
  pack_columns(head.query, S, K, buffers.query_SK);
  pack_columns(head.dout, S, K, buffers.dout_SK);
  dot_rows(shape, head.dout,
           view_head(out_head(args.out.as<T>(), shape, b, h), shape, buffers.dquery),
           buffers.dot_S);
  const bool first_of_group = h % (shape.query_heads / shape.kv_heads) == 0;
  for (std::int64_t k0 = 0; k0 < S; k0 += kTile) {
    for (std::int64_t q0 = k0; q0 < S; q0 += kQueries) {
      const BackwardTile tile{
          b, h, k0, std::min(kTile, S - k0), q0, std::min(kQueries, S - q0), first_of_group};
      differentiate_tile(args, tile, head, buffers);
      accumulate_tile(shape, tile, buffers);
    }
  }
  store_head(buffers.dquery, shape, packed_head(args.dqkv.as<T>(), shape, b, Part::kQuery, h));
}

// One key/value head of one sequence: its query heads in order.
template <class T>
void backward_group(const AttentionBackward& args, std::int64_t b, std::int64_t g,
                    Scratch scratch) {
  const AttentionShape& shape = args.shape;
  const std::int64_t S = shape.positions, K = shape.head_width;
  const std::int64_t group = shape.query_heads / shape.kv_heads;
  const BackwardBuffers buffers(shape, scratch);
  const T* qkv = args.qkv.as<T>();
  T* dqkv = args.dqkv.as<T>();
  const MatrixView key =
      view_head(packed_head(qkv, shape, b, Part::kKey, g), shape, buffers.query_copy);
  pack_columns_of_transpose(key, K, S, buffers.key_KS);
  pack_columns(key, S, K, buffers.key_SK);
  pack_columns_of_transpose(
      view_head(packed_head(qkv, shape, b, Part::kValue, g), shape, buffers.query_copy), K, S,
      buffers.value_KS);
  for (std::int64_t h = g * group; h < (g + 1) * group; ++h) backward_head<T>(args, b, h, buffers);
  store_head(buffers.dkey, shape, packed_head(dqkv, shape, b, Part::kKey, g));
  store_head(buffers.dvalue, shape, packed_head(dqkv, shape, b, Part::kValue, g));
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
  Scratch scratch;
  ForwardBuffers(shape, scratch);
  return scratch.taken();
}

std::int64_t attention_backward_scratch_floats(const AttentionShape& shape) {
  Scratch scratch;
  BackwardBuffers(shape, scratch);
  return scratch.taken();
}

}  // namespace sherd::kernels::cpu
