// The equations are in kernels/attention.h.
#include "kernels/cpu/attention/backward_tile.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/random.h"
#include "kernels/cpu/wide.h"

namespace sherd::kernels::cpu {
namespace {

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
// Calls `strip(row, rows, keys)` for the tile's queries, of which the last sees `keys` keys: few at
// a time where that number grows.
template <class Strip>
void for_each_strip(const BackwardTile& tile, Strip&& strip) {
  for (std::int64_t row = 0, rows = 0; row < tile.num_queries; row += rows) {
    const std::int64_t before = tile.q0 + row - tile.k0;  // keys that all of them see, but one
    rows = std::min(before < tile.num_keys ? kStrip : kBackwardQueries, tile.num_queries - row);
    strip(row, rows, std::min(tile.num_keys, before + rows));
  }
}

// Where 16 bits are multiplied, makes units of a row of the tile, once its pair is there: of p and
// ds as their columns' depth, and in place of ds as its own.
void turn_query(const BackwardTile& tile, std::int64_t row, const Panels& panels,
                const BackwardBuffers& buffers) {
  if (!panels.rounds()) return;
  const std::int64_t lead = tile.lead(panels), place = row + lead;  // counted from an even row
  const bool odd = place % 2 != 0;
  if (!odd && row + 1 < tile.num_queries) return;
  const std::int64_t even_row = odd ? row - 1 : row;  // -1: no row of this tile
  const std::int64_t out = panels.units(place / 2 * 2) * kBackwardTile;
  for (const auto& [from, to] :
       {std::pair(buffers.p, buffers.p_turned), std::pair(buffers.ds, buffers.ds_turned)}) {
    panels.turn(even_row >= 0 ? from + even_row * kBackwardTile : nullptr,
                odd ? from + row * kBackwardTile : nullptr, tile.num_keys, to + out, kBackwardTile);
  }
  for (std::int64_t r = std::max<std::int64_t>(even_row, 0); r <= row; ++r) {
    panels.to_units(buffers.ds + r * kBackwardTile, tile.num_keys);
  }
}

}  // namespace

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
                                 .c = out + row * kBackwardTile,
                                 .c_stride = kBackwardTile,
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
    const ScoreRow row{buffers.p + (q - q0) * kBackwardTile, buffers.ds + (q - q0) * kBackwardTile,
                       lse_Q[query], buffers.dot_Q[query], document.element(tile.h, q) + k0};
    float slope[kBackwardTile];
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

void accumulate_tile(const AttentionShape& shape, const BackwardTile& tile, const Panels& panels,
                     const BackwardBuffers& buffers) {
  const std::int64_t S = shape.positions, K = shape.head_width, k0 = tile.k0, q0 = tile.q0;
  const std::int64_t Q = shape.num_queries(), lead = tile.lead(panels);
  // A key is seen by the queries from its own on.
  const std::int64_t strip = q0 == k0 ? kStrip : kBackwardTile;
  const auto over_queries = [&](const float* weights, const float* right, float scale, float* out) {
    for (std::int64_t key = 0; key < tile.num_keys; key += strip) {
      const std::int64_t unseen = q0 == k0 ? key : 0;
      panels.multiply({.first = {.depth = lead + tile.num_queries - unseen,
                                 .a = weights + panels.units(unseen) * kBackwardTile + key,
                                 .a_row = 1,
                                 .a_depth = kBackwardTile,
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
                               .a = buffers.ds + row * kBackwardTile,
                               .a_row = kBackwardTile,
                               .b = panels.at(buffers.key_SK, S, k0, 0),
                               .c = buffers.dquery + (tile.first_row + row) * K,
                               .c_stride = K,
                               .scale = shape.score_scale(),
                               .add = k0 > 0 || shape.windowed()},
                     .b_depth = S},
                    rows, K);
  });
}
}  // namespace sherd::kernels::cpu
