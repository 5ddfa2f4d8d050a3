#include "kernels/cpu/attention/attention_strip.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/lane_sum.h"
#include "kernels/cpu/random.h"
#include "kernels/cpu/wide.h"

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
  each_element(count, [=](std::int64_t i) { x[i] = fast_exp(x[i] - maximum); });
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

}  // namespace

KeyRange keys_of_strip(const AttentionShape& shape, std::int64_t q0, std::int64_t end) {
  // Panels can be entered at multiples of their columns only.
  return {first_key(shape, q0) / kMaxTileColumns * kMaxTileColumns, std::min(end, shape.positions)};
}

StripBuffers::StripBuffers(std::int64_t rows, std::int64_t most_keys, std::int64_t head_width,
                           Scratch& scratch)
    : query(scratch.take(rows * whole_pairs(head_width))),
      out(scratch.take(rows * head_width)),
      score(scratch.take(rows * round_up(most_keys, kMaxTileColumns))),
      factor(scratch.take(rows)),
      score_stride(round_up(most_keys, kMaxTileColumns)) {}

void score_queries(const AttentionShape& shape, const PackedHead& head, const MatrixView& queries,
                   std::int64_t rows, const KeyRange& keys, const StripBuffers& buffers) {
  const Panels& panels = head.panels;
  const std::int64_t K = shape.head_width;
  panels.multiply({.first = {.depth = K,
                             .a = queries.data,
                             .a_row = queries.stride,
                             .b = panels.at(head.keys, K, 0, keys.begin),
                             .c = buffers.score,
                             .c_stride = buffers.score_stride,
                             .scale = shape.score_scale()},
                   .b_depth = K},
                  rows, round_up(keys.end - keys.begin, panels.columns()));
}

float softmax_row(const AttentionShape& shape, const Dropout& dropout, std::int64_t first_element,
                  std::int64_t q, const KeyRange& keys, float* row, float* lse, float* largest) {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  const std::int64_t first = first_key(shape, q) - keys.begin;
  const std::int64_t end = std::min(q + 1, shape.positions) - keys.begin;
  const std::int64_t num_keys = keys.end - keys.begin, padded = round_up(end, kLine);
  if (first >= end) {
    std::fill(row, row + num_keys, 0.0f);
    *lse = kMasked;
    return 0.0f;
  }
  if (largest != nullptr) *largest = std::max(*largest, row_maximum(row + first, end - first));
  if (shape.softcap > 0.0f) cap_scores(SoftCap(shape.softcap), row + first, end - first);
  std::fill(row, row + first, kMasked);
  std::fill(row + end, row + padded, kMasked);
  const float maximum = row_maximum(row, padded);
  const float sum = exponentials(row, padded, maximum);
  if (padded < num_keys) std::fill(row + padded, row + num_keys, 0.0f);
  *lse = maximum + fast_log(sum);
  if (!dropout.active()) return 1.0f / sum;
  drop(dropout, first_element + keys.begin + first, row + first, end - first);
  return dropout.scale() / sum;
}

float join_sink(float sink, float* lse) {
  const float without = *lse, maximum = std::max(without, sink);
  *lse = maximum + fast_log(fast_exp(without - maximum) + fast_exp(sink - maximum));
  return fast_exp(without - *lse);
}

void weigh_values(const AttentionShape& shape, const PackedHead& head, std::int64_t rows,
                  const KeyRange& keys, const StripBuffers& buffers) {
  const Panels& panels = head.panels;
  const std::int64_t K = shape.head_width, num_keys = keys.end - keys.begin;
  for (std::int64_t r = 0; r < rows; ++r) {
    panels.to_units(buffers.score + r * buffers.score_stride, num_keys);
  }
  panels.multiply({.first = {.depth = num_keys,
                             .a = buffers.score,
                             .a_row = buffers.score_stride,
                             .b = panels.at(head.values, head.depth, keys.begin, 0),
                             .c = buffers.out,
                             .c_stride = K},
                   .b_depth = head.depth},
                  rows, K);
  for (std::int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (std::int64_t k = 0; k < K; ++k) buffers.out[r * K + k] *= buffers.factor[r];
  }
}

}  // namespace sherd::kernels::cpu
