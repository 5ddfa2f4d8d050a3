// The forward; the backward is in attention_backward.cpp.
#include "kernels/cpu/attention/attention.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <type_traits>

#include "kernels/cpu/attention/attention_strip.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

struct ForwardBuffers {
  ForwardBuffers(const AttentionShape& shape, Scratch& scratch)
      : key_panels(scratch.take(panel_floats(shape.head_width, shape.num_keys()))),
        value_panels(scratch.take(panel_floats(shape.num_keys(), shape.head_width))),
        strip(kStrip, shape.num_keys(), shape.head_width, scratch) {}
  float *key_panels, *value_panels;
  StripBuffers strip;
};

// A query's result over these keys joins that over others.
void merge_row(const float* own, float own_lse, std::int64_t head_width, float* out, float* lse) {
  if (own_lse == -std::numeric_limits<float>::infinity()) return;  // it sees none of these
  const float most = std::max(*lse, own_lse);
  const float merged = most + fast_log(fast_exp(*lse - most) + fast_exp(own_lse - most));
  const float kept = fast_exp(*lse - merged), added = fast_exp(own_lse - merged);
#pragma omp simd
  for (std::int64_t k = 0; k < head_width; ++k) out[k] = kept * out[k] + added * own[k];
  *lse = merged;
}

// The largest of both; other tasks may do the same.
void join_maximum(std::int32_t* maximum, float score) {
  if (score == -std::numeric_limits<float>::infinity()) return;
  const std::uint32_t word = ordered_word(std::bit_cast<std::uint32_t>(score));
  const std::atomic_ref<std::uint32_t> joined(*reinterpret_cast<std::uint32_t*>(maximum));
  std::uint32_t before = joined.load(std::memory_order_relaxed);
  while (before < word && !joined.compare_exchange_weak(before, word, std::memory_order_relaxed)) {
  }
}

// One head of one document, strip of queries by strip; writes its rows of out and lse, or merges
// with them.
template <class T, class Out>
void forward_head(const AttentionForward& args, const Document& document, std::int64_t h,
                  const ForwardBuffers& buffers) {
  const AttentionShape& shape = document.shape;
  const std::int64_t S = shape.positions, K = shape.head_width;
  const std::int64_t g = h / (shape.query_heads / shape.kv_heads);
  const std::int64_t first_row = document.first_query_row();
  const StripBuffers& strip = buffers.strip;
  const HeadRows<Out> out = out_head(args.out.as<Out>(), shape, first_row, h);
  float* lse_Q = args.lse.as<float>() + document.statistic(h);
  if (!args.merge) {
    clear_padding(out, document.num_queries, document.query_padding, K);
    std::fill_n(lse_Q + document.num_queries, document.query_padding, 0.0f);
  }
  if (document.empty()) return;
  const auto head_of = [&](Part part) {
    return stored(key_value_head<T>(args.qkv, args.keys_values, document, part, g));
  };
  const Panels panels(args.qkv.dtype);
  panels.pack_transpose(head_of(Part::kKey), K, S, buffers.key_panels);
  panels.pack(head_of(Part::kValue), S, K, buffers.value_panels);
  const PackedHead packed{panels, buffers.key_panels, buffers.value_panels, S};
  const HeadRows<const T> queries =
      packed_head(args.qkv.as<T>(), shape, first_row, Part::kQuery, h);
  const float sink = args.sinks ? static_cast<float>(args.sinks.as<T>()[h]) : 0.0f;
  float largest = -std::numeric_limits<float>::infinity();
  float* const found = args.maxima ? &largest : nullptr;
  const std::int64_t first_query = shape.first_query, end = first_query + shape.num_queries();
  for (std::int64_t strip_begin = first_query / kStrip * kStrip; strip_begin < end;
       strip_begin += kStrip) {
    const std::int64_t q0 = std::max(strip_begin, first_query);
    const std::int64_t row = q0 - first_query, rows = std::min(strip_begin + kStrip, end) - q0;
    const KeyRange keys = keys_of_strip(shape, strip_begin, q0 + rows);
    if (keys.begin >= keys.end) continue;  // all of the block are before the window
    float merged_lse[kStrip];
    float* lse = args.merge ? merged_lse : lse_Q + row;
    const MatrixView left =
        panels.left({queries.first + row * queries.stride, queries.stride}, rows, K, strip.query);
    score_queries(shape, packed, left, rows, keys, strip);
    for (std::int64_t r = 0; r < rows; ++r) {
      strip.factor[r] = softmax_row(shape, args.dropout, document.element(h, q0 + r), q0 + r, keys,
                                    strip.score + r * strip.score_stride, lse + r, found);
      if (args.sinks) strip.factor[r] *= join_sink(sink, lse + r);
    }
    weigh_values(shape, packed, rows, keys, strip);
    Out* out_rows = out.first + row * out.stride;
    if constexpr (std::is_same_v<Out, float>) {
      for (std::int64_t r = 0; args.merge && r < rows; ++r) {
        merge_row(strip.out + r * K, lse[r], K, out_rows + r * out.stride, lse_Q + row + r);
      }
    }
    if (!args.merge) narrow_rows(strip.out, K, out_rows, out.stride, rows, K);
  }
  if (args.maxima) join_maximum(args.maxima.as<std::int32_t>() + h, largest);
}

}  // namespace

void attention_forward(ThreadTeam& team, const AttentionForward& args) {
  const std::int64_t H = args.shape.query_heads;
  const std::int64_t floats = attention_forward_scratch_floats(args.shape);
  dispatch_float(args.qkv.dtype, [&]<class T>(T) {
    team.parallel_for(args.shape.sequences * H, [&](std::int64_t task, int thread) {
      Scratch scratch = checked_scratch(args.workspace, floats, team.num_threads(), thread);
      const ForwardBuffers buffers(args.shape, scratch);
      for_each_document(args.shape, args.documents, task / H, [&](const Document& document) {
        if (args.shape.block) {
          forward_head<T, float>(args, document, task % H, buffers);
        } else {
          forward_head<T, T>(args, document, task % H, buffers);
        }
      });
    });
  });
}

std::int64_t attention_forward_scratch_floats(const AttentionShape& shape) {
  Scratch scratch;
  ForwardBuffers(shape, scratch);
  return scratch.taken();
}

}  // namespace sherd::kernels::cpu
