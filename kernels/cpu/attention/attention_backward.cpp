// The backward of attention; the forward is in attention.cpp.
#include "kernels/cpu/attention/attention.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "kernels/cpu/attention/attention_heads.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/lane_sum.h"
#include "kernels/cpu/random.h"
#include "kernels/cpu/wide.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

constexpr std::int64_t kTile = 192;             // keys at a time
constexpr std::int64_t kQueries = kPanelDepth;  // and queries
constexpr std::size_t kMostLevels = 6;  // of a tree over query heads, and in it over queries
static_assert(kStrip % kTileRowsMultiple == 0 && kTile % kStrip == 0 && kTile <= kQueries);
static_assert(kTile % kMaxTileColumns == 0);

// What the backward of one key/value head keeps in scratch: panels whose depth is the head's width
// (_KS), the positions (_SK) or the queries (_QK), rows of gradients, and p and ds of one tile.
struct BackwardBuffers {
  BackwardBuffers(const AttentionShape& shape, DType dtype, Scratch& scratch) {
    const std::int64_t S = shape.num_keys(), K = shape.head_width, Q = shape.num_queries();
    for (float** panels : {&key_KS, &value_KS}) *panels = scratch.take(panel_floats(K, S));
    key_SK = scratch.take(panel_floats(S, K));
    for (float** panels : {&query_QK, &dout_QK}) *panels = scratch.take(panel_floats(Q, K));
    for (float** rows : {&dkey, &dvalue}) *rows = scratch.take(S * K);
    for (float** rows : {&query_copy, &dout_copy}) *rows = scratch.take(Q * whole_pairs(K));
    dquery = scratch.take(Q * K);
    p = scratch.take(kQueries * kTile);
    ds = scratch.take(kQueries * kTile);
    p_turned = p;
    ds_turned = ds;
    if (dtype == DType::kBF16) {
      for (float** turned : {&p_turned, &ds_turned}) *turned = scratch.take((kQueries + 2) * kTile);
    }
    dot_Q = scratch.take(Q);
    std::size_t level = 0;
    for (int groups : {shape.query_groups, shape.kv_sum_groups}) {
      for (; groups > 1; groups /= 2, ++level) {
        dkey_above[level] = scratch.take(S * K);
        dvalue_above[level] = scratch.take(S * K);
      }
    }
  }
  float *key_KS, *value_KS, *key_SK, *query_QK, *dout_QK;
  float *query_copy, *dout_copy;  // as a left matrix
  float *dquery, *dkey, *dvalue;
  float *p, *ds;                // [queries, tile]
  float *p_turned, *ds_turned;  // the same as units whose depth are the queries: Panels::turn
  float* dot_Q;                 // D of the header
  // Of the upper halves of a tree, the smallest first: of queries, then of their heads.
  std::array<float*, kMostLevels> dkey_above{}, dvalue_above{};
};

// D[q] = <do[q,:], o[q,:]>, with o in `out_SK`.
void dot_rows(const AttentionShape& shape, const MatrixView& dout_QK, const MatrixView& out_QK,
              float* dot_Q) {
  const std::int64_t K = shape.head_width;
  for (std::int64_t q = 0; q < shape.num_queries(); ++q) {
    const float *a = dout_QK.from_row(q).data, *b = out_QK.from_row(q).data;
    LaneSum sum;
    sum.add(
        static_cast<int>(K), [=](int i) { return load8(a + i) * load8(b + i); },
        [=](int i) { return a[i] * b[i]; });
    dot_Q[q] = sum.total();
  }
}

struct ScoreRow {
  float *p, *ds;  // scores and dp; become drop(p) and ds
  float lse, dot;
  std::int64_t element;  // of the dropout, for the first key

  ScoreRow from(std::int64_t key) const { return {p + key, ds + key, lse, dot, element + key}; }
};

void differentiate_row(const Dropout& dropout, const ScoreRow& row, std::int64_t num_keys) {
  float *p = row.p, *ds = row.ds;
  const float lse = row.lse, dot = row.dot;
  if (!dropout.active()) {
    each_element(num_keys, [=](std::int64_t k) {
      p[k] = fast_exp(p[k] - lse);
      ds[k] = p[k] * (ds[k] - dot);
    });
    return;
  }
  WordScratch scratch;
  const std::uint32_t* words = random_words(dropout.address, dropout.first_element + row.element,
                                            static_cast<int>(num_keys), scratch);
  const std::uint32_t threshold = dropout.threshold();
  const float scale = dropout.scale();
  each_element(num_keys, [=](std::int64_t k) {
    const float probability = fast_exp(p[k] - lse);
    const float kept = words[k] >= threshold ? scale : 0.0f;
    ds[k] = probability * ((words[k] >= threshold ? ds[k] * scale : 0.0f) - dot);
    p[k] = probability * kept;
  });
}

// With a soft cap: the scores become what was capped, and `slope` the cap's derivative there.
void cap_row(const SoftCap& soft_cap, float* score, float* slope, std::int64_t num_keys) {
#pragma omp simd
  for (std::int64_t k = 0; k < num_keys; ++k) {
    const float tanh = soft_cap.tanh_of(score[k]);
    score[k] = soft_cap.cap * tanh;
    slope[k] = std::fma(-tanh, tanh, 1.0f);
  }
}

void multiply_row(const float* factor, float* row, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) row[i] *= factor[i];
}

// The keys [k0, k0 + num_keys) and the queries [q0, q0 + num_queries) of one head of a document,
// q0 >= k0. Of a block, queries are behind the last key, too.
struct BackwardTile {
  std::int64_t h, k0, num_keys, q0, num_queries;
  std::int64_t first_row;  ///< of q0 among the queries that are computed
  bool begins_sum;         ///< of its keys' gradients

  // Rows of 16 bits are taken by pairs, which begin at an even one.
  std::int64_t lead(const Panels& panels) const { return panels.rounds() ? first_row % 2 : 0; }
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

// Where 16 bits are multiplied, makes units of a row of the tile, once its pair is there: of p and ds as their columns'
// depth, and in place of ds as its own.
void turn_query(const BackwardTile& tile, std::int64_t row, const Panels& panels,
                const BackwardBuffers& buffers) {
  if (!panels.rounds()) return;
  const std::int64_t lead = tile.lead(panels), place = row + lead;  // counted from an even row
  const bool odd = place % 2 != 0;
  if (!odd && row + 1 < tile.num_queries) return;
  const std::int64_t even_row = odd ? row - 1 : row;  // -1: no row of this tile
  const std::int64_t out = panels.units(place / 2 * 2) * kTile;
  for (const auto& [from, to] :
       {std::pair(buffers.p, buffers.p_turned), std::pair(buffers.ds, buffers.ds_turned)}) {
    panels.turn(even_row >= 0 ? from + even_row * kTile : nullptr,
                odd ? from + row * kTile : nullptr, tile.num_keys, to + out, kTile);
  }
  for (std::int64_t r = std::max<std::int64_t>(even_row, 0); r <= row; ++r) {
    panels.to_units(buffers.ds + r * kTile, tile.num_keys);
  }
}

// The scores and dp of the tile, then in their place drop(p) and ds, exactly zero where masked.
void differentiate_tile(const AttentionBackward& args, const Document& document,
                        const BackwardTile& tile, const QueryHead& head, const Panels& panels,
                        const BackwardBuffers& buffers) {
  const AttentionShape& shape = document.shape;
  const std::int64_t K = shape.head_width, k0 = tile.k0, q0 = tile.q0;
  const auto multiply = [&](const MatrixView& matrix, const float* right, float scale, float* out) {
    for_each_strip(tile, [&](std::int64_t row, std::int64_t rows, std::int64_t keys) {
      panels.multiply({.first = {.depth = K,
                                 .a = matrix.from_row(tile.first_row + row).data,
                                 .a_row = matrix.stride,
                                 .b = panels.at(right, K, 0, k0),
                                 .c = out + row * kTile,
                                 .c_stride = kTile,
                                 .scale = scale},
                       .b_depth = K},
                      rows, round_up(keys, panels.columns()));
    });
  };
  multiply(head.query, buffers.key_KS, shape.score_scale(), buffers.p);
  multiply(head.dout, buffers.value_KS, 1.0f, buffers.ds);
  const auto* lse_Q = args.lse.as<float>() + document.statistic(tile.h);
  for (std::int64_t q = q0; q < q0 + tile.num_queries; ++q) {
    const std::int64_t end = std::min(tile.num_keys, q - k0 + 1);
    const std::int64_t first = std::clamp<std::int64_t>(first_key(shape, q) - k0, 0, end);
    const std::int64_t query = q - shape.first_query;
    const ScoreRow row{buffers.p + (q - q0) * kTile, buffers.ds + (q - q0) * kTile, lse_Q[query],
                       buffers.dot_Q[query], document.element(tile.h, q) + k0};
    float slope[kTile];
    if (shape.softcap > 0.0f) {
      cap_row(SoftCap(shape.softcap), row.p + first, slope, end - first);
    }
    differentiate_row(args.dropout, row.from(first), end - first);
    if (shape.softcap > 0.0f) multiply_row(slope, row.ds + first, end - first);
    for (float* masked : {row.p, row.ds}) {
      std::fill(masked, masked + first, 0.0f);
      std::fill(masked + end, masked + tile.num_keys, 0.0f);
    }
    turn_query(tile, q - q0, panels, buffers);
  }
}

// Adds the tile's part to dV and dK of its keys and to dQ of its queries.
void accumulate_tile(const AttentionShape& shape, const BackwardTile& tile, const Panels& panels,
                     const BackwardBuffers& buffers) {
  const std::int64_t S = shape.positions, K = shape.head_width, k0 = tile.k0, q0 = tile.q0;
  const std::int64_t Q = shape.num_queries(), lead = tile.lead(panels);
  // A key is seen by the queries from its own on.
  const std::int64_t strip = q0 == k0 ? kStrip : kTile;
  const auto over_queries = [&](const float* weights, const float* right, float scale, float* out) {
    for (std::int64_t key = 0; key < tile.num_keys; key += strip) {
      const std::int64_t unseen = q0 == k0 ? key : 0;
      panels.multiply({.first = {.depth = lead + tile.num_queries - unseen,
                                 .a = weights + panels.units(unseen) * kTile + key,
                                 .a_row = 1,
                                 .a_depth = kTile,
                                 .b = panels.at(right, Q, tile.first_row - lead + unseen, 0),
                                 .c = out + (k0 + key) * K,
                                 .c_stride = K,
                                 .scale = scale,
                                 .add = !tile.begins_sum},
                       .b_depth = Q},
                      std::min(strip, tile.num_keys - key), K);
    }
  };
  over_queries(buffers.p_turned, buffers.dout_QK, 1.0f, buffers.dvalue);
  over_queries(buffers.ds_turned, buffers.query_QK, shape.score_scale(), buffers.dkey);
  for_each_strip(tile, [&](std::int64_t row, std::int64_t rows, std::int64_t keys) {
    panels.multiply({.first = {.depth = keys,
                               .a = buffers.ds + row * kTile,
                               .a_row = kTile,
                               .b = panels.at(buffers.key_SK, S, k0, 0),
                               .c = buffers.dquery + (tile.first_row + row) * K,
                               .c_stride = K,
                               .scale = shape.score_scale(),
                               .add = k0 > 0 || shape.windowed()},
                     .b_depth = S},
                    rows, K);
  });
}

template <class T>
void finish_head(const float* gradient, std::int64_t rows, std::int64_t padding,
                 std::int64_t head_width, const HeadRows<T>& head) {
  narrow_rows(gradient, head_width, head.first, head.stride, rows, head_width);
  clear_padding(head, rows, padding, head_width);
}

// The gradient of a block is added to others'.
void add_head(const float* gradient, std::int64_t rows, std::int64_t head_width,
              const HeadRows<float>& head) {
  for (std::int64_t r = 0; r < rows; ++r) {
    add_narrowed(gradient + r * head_width, head.first + r * head.stride, head_width);
  }
}

// Of keys that none of the queries sees.
void clear_keys(std::int64_t k0, std::int64_t num_keys, std::int64_t head_width,
                const BackwardBuffers& buffers) {
  for (float* gradient : {buffers.dkey, buffers.dvalue}) {
    std::fill_n(gradient + k0 * head_width, num_keys * head_width, 0.0f);
  }
}

// One query head: tiles of keys, and for each the queries that see them.
template <class T>
void backward_head(const AttentionBackward& args, const Document& document, std::int64_t h,
                   bool first_of_group, const BackwardBuffers& buffers) {
  const AttentionShape& shape = document.shape;
  const std::int64_t first_row = document.first_query_row(), Q = document.num_queries;
  const std::int64_t S = shape.positions, K = shape.head_width;
  if (Q == 0) {
    if (first_of_group) clear_keys(0, S, K, buffers);
    return;
  }
  const Panels panels(args.qkv.dtype);
  const HeadRows<const T> dout = out_head(args.dout.as<T>(), shape, first_row, h);
  const StoredRows query = stored(packed_head(args.qkv.as<T>(), shape, first_row, Part::kQuery, h));
  panels.pack(query, Q, K, buffers.query_QK);
  panels.pack(stored(dout), Q, K, buffers.dout_QK);
  dot_rows(shape, view_head(dout, Q, K, buffers.dout_copy),
           view_head(out_head(args.out.as<T>(), shape, first_row, h), Q, K, buffers.dquery),
           buffers.dot_Q);
  const QueryHead head{panels.left(query, Q, K, buffers.query_copy),
                       panels.left(stored(dout), Q, K, buffers.dout_copy)};
  // A window begins anywhere in a tile: which tile comes first for a query isn't known.
  if (shape.windowed()) std::fill_n(buffers.dquery, Q * K, 0.0f);
  const std::int64_t last = shape.first_query + Q, last_key = std::min(last, S);
  if (first_of_group) clear_keys(last_key, S - last_key, K, buffers);
  for (std::int64_t k0 = 0; k0 < last_key; k0 += kTile) {
    const std::int64_t num_keys = std::min(kTile, last_key - k0);
    const std::int64_t end =
        shape.windowed() ? std::min(last, k0 + num_keys - 1 + shape.window) : last;
    const std::int64_t begin = std::max(k0, shape.first_query);
    if (begin >= end && first_of_group) clear_keys(k0, num_keys, K, buffers);
    for (std::int64_t q0 = begin; q0 < end; q0 += kQueries) {
      const BackwardTile tile{.h = h,
                              .k0 = k0,
                              .num_keys = num_keys,
                              .q0 = q0,
                              .num_queries = std::min(kQueries, end - q0),
                              .first_row = q0 - shape.first_query,
                              .begins_sum = first_of_group && q0 == begin};
      differentiate_tile(args, document, tile, head, panels, buffers);
      accumulate_tile(shape, tile, panels, buffers);
    }
  }
  if (shape.block) {
    return add_head(buffers.dquery, Q, K, out_head(args.dq.as<float>(), shape, first_row, h));
  }
  const HeadRows<T> d_query = packed_head(args.dqkv.as<T>(), shape, first_row, Part::kQuery, h);
  narrow_rows(buffers.dquery, K, d_query.first, d_query.stride, Q, K);
}

// dK and dV of an upper half, which goes to the buffers of a level, are added to those of the lower one.
class UpperHalf {
 public:
  UpperHalf(const BackwardBuffers& lower, int level) : lower_(lower), buffers_(lower) {
    buffers_.dkey = lower.dkey_above[static_cast<std::size_t>(level)];
    buffers_.dvalue = lower.dvalue_above[static_cast<std::size_t>(level)];
  }
  const BackwardBuffers& buffers() const { return buffers_; }
  void add_to_lower(const AttentionShape& shape) const {
    const std::int64_t numel = shape.positions * shape.head_width;
    const auto add = [numel](float* sum, const float* addend) {
#pragma omp simd
      for (std::int64_t i = 0; i < numel; ++i) sum[i] += addend[i];
    };
    add(lower_.dkey, buffers_.dkey);
    add(lower_.dvalue, buffers_.dvalue);
  }

 private:
  const BackwardBuffers& lower_;
  BackwardBuffers buffers_;
};

int levels_of(int groups) {
  return groups > 1 ? std::bit_width(static_cast<unsigned>(groups)) - 1 : 0;
}

// Query heads [first, first + count), which are added in order: all queries, or a tree over groups of them.
template <class T>
void backward_queries(const AttentionBackward& args, const Document& document, std::int64_t first,
                      std::int64_t count, int group, int groups, const BackwardBuffers& buffers) {
  const AttentionShape& shape = document.shape;
  if (groups > 1) {
    const int half = groups / 2;
    const UpperHalf upper(buffers, levels_of(groups) - 1);
    backward_queries<T>(args, document, first, count, group, half, buffers);
    if ((group + half) * shape.of_a_query_group >= document.num_queries) return;  // nobody's
    backward_queries<T>(args, document, first, count, group + half, half, upper.buffers());
    return upper.add_to_lower(shape);
  }
  const Document queries = shape.query_groups > 0 ? document.group_of_queries(group) : document;
  for (std::int64_t h = first; h < first + count; ++h) {
    backward_head<T>(args, queries, h, h == first, buffers);
  }
}

// Query heads [first, first + count) of one key/value head, whose dK and dV they leave in `buffers`: in order, or
// as a tree over groups of them.
template <class T>
void backward_heads(const AttentionBackward& args, const Document& document, std::int64_t first,
                    std::int64_t count, int groups, const BackwardBuffers& buffers) {
  const int query_groups = document.shape.query_groups;
  if (groups == 1) {
    return backward_queries<T>(args, document, first, count, 0, query_groups, buffers);
  }
  const UpperHalf upper(buffers, levels_of(query_groups) + levels_of(groups) - 1);
  backward_heads<T>(args, document, first, count / 2, groups / 2, buffers);
  backward_heads<T>(args, document, first + count / 2, count / 2, groups / 2, upper.buffers());
  upper.add_to_lower(document.shape);
}

// Where the gradient of one head of keys or values goes unrounded: packed as in dqkv, without queries.
HeadRows<float> unrounded_head(const Tensor& dkv, const Document& document, Part part,
                               std::int64_t g) {
  const AttentionShape& shape = document.shape;
  const std::int64_t stride = 2 * shape.kv_heads * shape.head_width;
  const std::int64_t before = part == Part::kKey ? 0 : shape.kv_heads;
  return {dkv.as<float>() + document.first_key_row() * stride + (before + g) * shape.head_width,
          stride};
}

// One key/value head of one document.
template <class T>
void backward_group(const AttentionBackward& args, const Document& document, std::int64_t g,
                    const BackwardBuffers& buffers) {
  const AttentionShape& shape = document.shape;
  if (shape.block && document.empty()) return;  // adds nothing
  const std::int64_t S = shape.positions, K = shape.head_width;
  const std::int64_t group = shape.query_heads / shape.kv_heads;
  const auto head_of = [&](Part part) {
    return stored(key_value_head<T>(args.qkv, args.keys_values, document, part, g));
  };
  const Panels panels(args.qkv.dtype);
  panels.pack_transpose(head_of(Part::kKey), K, S, buffers.key_KS);
  panels.pack(head_of(Part::kKey), S, K, buffers.key_SK);
  panels.pack_transpose(head_of(Part::kValue), K, S, buffers.value_KS);
  const int planes = args.dkv_of_each_group ? shape.kv_sum_groups : 1;
  const std::int64_t heads = group / planes, numel = args.dkv.numel / planes;
  for (int plane = 0; plane < planes; ++plane) {
    backward_heads<T>(args, document, g * group + plane * heads, heads,
                      shape.kv_sum_groups / planes, buffers);
    for (const auto& [part, gradient] :
         {std::pair(Part::kKey, buffers.dkey), std::pair(Part::kValue, buffers.dvalue)}) {
      if (shape.block) {
        add_head(gradient, S, K, unrounded_head(args.dkv, document, part, g));
      } else if (args.dkv) {
        const Tensor dkv = args.dkv.part(plane * numel, numel);
        finish_head(gradient, S, document.padding, K, unrounded_head(dkv, document, part, g));
      } else {
        finish_head(gradient, S, document.padding, K,
                    packed_head(args.dqkv.as<T>(), shape, document.first_key_row(), part, g));
      }
    }
  }
  if (shape.block) return;
  for (std::int64_t h = g * group; h < (g + 1) * group; ++h) {
    clear_padding(
        packed_head(args.dqkv.as<T>(), shape, document.first_query_row(), Part::kQuery, h),
        document.num_queries, document.query_padding, K);
  }
}

}  // namespace

void attention_backward(ThreadTeam& team, const AttentionBackward& args) {
  const std::int64_t G = args.shape.kv_heads;
  const std::int64_t floats = attention_backward_scratch_floats(args.shape, args.qkv.dtype);
  dispatch_float(args.qkv.dtype, [&]<class T>(T) {
    team.parallel_for(args.shape.sequences * G, [&](std::int64_t task, int thread) {
      Scratch scratch = checked_scratch(args.workspace, floats, team.num_threads(), thread);
      const BackwardBuffers buffers(args.shape, args.qkv.dtype, scratch);
      for_each_document(args.shape, args.documents, task / G, [&](const Document& document) {
        backward_group<T>(args, document, task % G, buffers);
      });
    });
  });
}

std::int64_t attention_backward_scratch_floats(const AttentionShape& shape, DType dtype) {
  Scratch scratch;
  BackwardBuffers(shape, dtype, scratch);
  return scratch.taken();
}

}  // namespace sherd::kernels::cpu
