// The forward; the backward is in attention_backward.cpp.
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/attention_heads.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/lane_sum.h"
#include "kernels/cpu/random.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

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

void cap_scores(const SoftCap& soft_cap, float* score, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) score[i] = soft_cap.cap * soft_cap.tanh_of(score[i]);
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

// The keys [begin, end) whose scores stand in a strip's rows; every query of it sees some of them.
struct KeyRange {
  std::int64_t begin, end;
};

// Turns the scores of query q against `keys` into what multiplies the values: the exponentials,
// exactly zero where masked or dropped. Returns the factor that is still missing.
float softmax_row(const AttentionForward& args, std::int64_t first_element, std::int64_t q,
                  const KeyRange& keys, float* row, float* lse) {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  const std::int64_t first = first_key(args.shape, q) - keys.begin, end = q + 1 - keys.begin;
  const std::int64_t num_keys = keys.end - keys.begin, padded = round_up(end, kLine);
  if (args.shape.softcap > 0.0f) cap_scores(SoftCap(args.shape.softcap), row + first, end - first);
  std::fill(row, row + first, kMasked);
  std::fill(row + end, row + padded, kMasked);
  const float maximum = row_maximum(row, padded);
  const float sum = exponentials(row, padded, maximum);
  if (padded < num_keys) std::fill(row + padded, row + num_keys, 0.0f);
  *lse = maximum + fast_log(sum);
  if (!args.dropout.active()) return 1.0f / sum;
  drop(args.dropout, first_element + keys.begin + first, row + first, end - first);
  return args.dropout.scale() / sum;
}

struct ForwardBuffers {
  ForwardBuffers(const AttentionShape& shape, Scratch& scratch) {
    const std::int64_t S = shape.positions, K = shape.head_width;
    score_stride = round_up(S, kMaxTileColumns);
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

// The scores of `rows` queries against `keys`, and a few beyond.
void score_queries(const AttentionShape& shape, const MatrixView& query, std::int64_t rows,
                   const KeyRange& keys, const ForwardBuffers& buffers) {
  multiply_panels({.first = {.depth = shape.head_width,
                             .a = query.data,
                             .a_row = query.stride,
                             .b = in_panels(buffers.key_panels, shape.head_width, 0, keys.begin),
                             .c = buffers.score,
                             .c_stride = buffers.score_stride,
                             .scale = shape.score_scale()},
                   .b_depth = shape.head_width},
                  rows, round_up(keys.end - keys.begin, panel_columns()));
}

void weigh_values(const AttentionShape& shape, std::int64_t rows, const KeyRange& keys,
                  const ForwardBuffers& buffers) {
  multiply_panels({.first = {.depth = keys.end - keys.begin,
                             .a = buffers.score,
                             .a_row = buffers.score_stride,
                             .b = in_panels(buffers.value_panels, shape.positions, keys.begin, 0),
                             .c = buffers.out,
                             .c_stride = shape.head_width},
                   .b_depth = shape.positions},
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
    const std::int64_t rows = std::min(kStrip, S - q0);
    // Panels can be entered at multiples of their columns only.
    const std::int64_t unseen = first_key(shape, q0) / kMaxTileColumns * kMaxTileColumns;
    const KeyRange keys{unseen, q0 + rows};
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

std::int64_t attention_forward_scratch_floats(const AttentionShape& shape) {
  Scratch scratch;
  ForwardBuffers(shape, scratch);
  return scratch.taken();
}

}  // namespace sherd::kernels::cpu
