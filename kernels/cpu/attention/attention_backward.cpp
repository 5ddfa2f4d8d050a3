// The backward of attention; the forward is in attention.cpp.
#include "kernels/cpu/attention/attention.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/cpu/attention/backward_tile.h"
#include "kernels/cpu/lane_sum.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

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
  for (std::int64_t k0 = 0; k0 < last_key; k0 += kBackwardTile) {
    const std::int64_t num_keys = std::min(kBackwardTile, last_key - k0);
    const std::int64_t end =
        shape.windowed() ? std::min(last, k0 + num_keys - 1 + shape.window) : last;
    const std::int64_t begin = std::max(k0, shape.first_query);
    if (begin >= end && first_of_group) clear_keys(k0, num_keys, K, buffers);
    for (std::int64_t q0 = begin; q0 < end; q0 += kBackwardQueries) {
      const BackwardTile tile{.h = h,
                              .k0 = k0,
                              .num_keys = num_keys,
                              .q0 = q0,
                              .num_queries = std::min(kBackwardQueries, end - q0),
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

// dK and dV of an upper half, which goes to the buffers of a level, are added to those of the lower
// one.
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

// Query heads [first, first + count), which are added in order: all queries, or a tree over groups
// of them.
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

// Query heads [first, first + count) of one key/value head, whose dK and dV they leave in
// `buffers`: in order, or as a tree over groups of them.
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

// Where the gradient of one head of keys or values goes unrounded: packed as in dqkv, without
// queries.
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
