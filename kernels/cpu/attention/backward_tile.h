/// One tile of attention's backward on a CPU: what it keeps in scratch, and the two steps on it.
#pragma once

#include <array>

#include "kernels/cpu/attention/attention_heads.h"

namespace sherd::kernels::cpu {

inline constexpr std::int64_t kBackwardTile = 192;             // keys at a time
inline constexpr std::int64_t kBackwardQueries = kPanelDepth;  // and queries
inline constexpr std::size_t kMostLevels = 6;  // of a tree over query heads, and in it over queries
static_assert(kStrip % kTileRowsMultiple == 0 && kBackwardTile % kStrip == 0 &&
              kBackwardTile <= kBackwardQueries);
static_assert(kBackwardTile % kMaxTileColumns == 0);

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
    p = scratch.take(kBackwardQueries * kBackwardTile);
    ds = scratch.take(kBackwardQueries * kBackwardTile);
    p_turned = p;
    ds_turned = ds;
    if (dtype == DType::kBF16) {
      for (float** turned : {&p_turned, &ds_turned})
        *turned = scratch.take((kBackwardQueries + 2) * kBackwardTile);
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

// The keys [k0, k0 + num_keys) and the queries [q0, q0 + num_queries) of one head of a document,
// q0 >= k0. A block also has queries after its last key.
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

/// The scores and dp of the tile, then in their place drop(p) and ds, exactly zero where masked.
void differentiate_tile(const AttentionBackward& args, const Document& document,
                        const BackwardTile& tile, const QueryHead& head, const Panels& panels,
                        const BackwardBuffers& buffers);

/// Adds the tile's part to dV and dK of its keys and to dQ of its queries.
void accumulate_tile(const AttentionShape& shape, const BackwardTile& tile, const Panels& panels,
                     const BackwardBuffers& buffers);

}  // namespace sherd::kernels::cpu
