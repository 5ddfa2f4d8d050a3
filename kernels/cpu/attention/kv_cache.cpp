#include "kernels/cpu/attention/kv_cache.h"

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/attention/attention_strip.h"
#include "kernels/cpu/round_up.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

std::int64_t key_floats(const AttentionShape& shape) {
  return panel_floats(shape.head_width, shape.positions);
}
std::int64_t value_floats(const AttentionShape& shape) {
  return panel_floats(shape.positions, shape.head_width);
}
std::int64_t head_floats(const AttentionShape& shape) {
  return key_floats(shape) + value_floats(shape);
}

std::int64_t heads_per_kv_head(const AttentionShape& shape) {
  return shape.query_heads / shape.kv_heads;
}

// Rows of a task's scores, at most: queries of a strip's positions, of heads with the same keys.
constexpr std::int64_t kMostRows = 8 * kStrip;

StripBuffers strip_buffers(const AttentionShape& shape, Scratch& scratch) {
  const std::int64_t rows = std::min(kMostRows, kStrip * heads_per_kv_head(shape));
  return {rows, shape.positions, shape.head_width, scratch};
}

// New rows of one key/value head, from qkv into its panels.
template <class T>
void append(const CachedAttention& args, std::int64_t g) {
  const AttentionShape& shape = args.shape;
  const Panels panels(args.qkv.dtype);
  const std::int64_t K = shape.head_width;
  float* keys = args.cache.as<float>() + g * head_floats(shape);
  float* values = keys + key_floats(shape);
  const HeadRows<const T> key = packed_head(args.qkv.as<T>(), shape, 0, Part::kKey, g);
  const HeadRows<const T> value = packed_head(args.qkv.as<T>(), shape, 0, Part::kValue, g);
  for (std::int64_t t = 0; t < args.count; ++t) {
    panels.put_column(key.first + t * key.stride, args.first + t, K, keys);
    panels.put_row(value.first + t * value.stride, args.first + t, shape.positions, K, values);
  }
}

// A strip of positions [first, end), of some query heads that read the same key/value head.
struct Strip {
  std::int64_t first = 0, end = 0;
  std::int64_t kv_head = 0, first_head = 0, heads = 0;  // first_head of those that read it
};

template <class T>
void attend(const CachedAttention& args, const Strip& of, Scratch scratch) {
  const AttentionShape& shape = args.shape;
  const auto [first, end, g, first_head, heads] = of;
  const std::int64_t K = shape.head_width, count = end - first;
  const std::int64_t first_query = g * heads_per_kv_head(shape) + first_head;
  const StripBuffers strip = strip_buffers(shape, scratch);
  const float* keys_of_head = args.cache.as<float>() + g * head_floats(shape);
  const Panels panels(args.qkv.dtype);
  const PackedHead packed{panels, keys_of_head, keys_of_head + key_floats(shape), shape.positions};
  const KeyRange keys = keys_of_strip(shape, first / kStrip * kStrip, end);
  const std::int64_t row = first - args.first;
  MatrixView queries{strip.query, whole_pairs(K)};
  for (std::int64_t h = 0; h < heads; ++h) {
    const HeadRows<const T> query =
        packed_head(args.qkv.as<T>(), shape, 0, Part::kQuery, first_query + h);
    float* copy = strip.query + h * count * queries.stride;
    if constexpr (std::is_same_v<T, float>) {  // the heads' rows one after the other
      widen_rows(query.first + row * query.stride, query.stride, copy, queries.stride, count, K);
    } else {
      panels.left({query.first + row * query.stride, query.stride}, count, K, copy);
    }
  }
  score_queries(shape, packed, queries, heads * count, keys, strip);
  for (std::int64_t r = 0; r < heads * count; ++r) {
    float lse = 0.0f;
    strip.factor[r] = softmax_row(shape, {}, 0, first + r % count, keys,
                                  strip.score + r * strip.score_stride, &lse);
    if (args.sinks) {
      const std::int64_t head = first_query + r / count;
      strip.factor[r] *= join_sink(static_cast<float>(args.sinks.as<T>()[head]), &lse);
    }
  }
  weigh_values(shape, packed, heads * count, keys, strip);
  for (std::int64_t h = 0; h < heads; ++h) {
    const HeadRows<T> out = out_head(args.out.as<T>(), shape, 0, first_query + h);
    narrow_rows(strip.out + h * count * K, K, out.first + row * out.stride, out.stride, count, K);
  }
}

}  // namespace

// One loop: new rows first, which all heads wait for. Heads with the same keys go together, since
// they read them once, unless there would be less than two tasks for each of several threads, or
// more than kMostRows rows; no row of a product depends on the others.
void cached_attention(ThreadTeam& team, const CachedAttention& args) {
  const AttentionShape& shape = args.shape;
  const std::int64_t floats = cached_attention_scratch_floats(shape);
  const std::int64_t G = shape.kv_heads, end = args.first + args.count;
  const std::int64_t first_strip = args.first / kStrip;
  const std::int64_t strips = (end + kStrip - 1) / kStrip - first_strip;
  const std::int64_t heads = heads_per_kv_head(shape),
                     wanted = team.num_threads() > 1 ? 2 * team.num_threads() : 1;
  const std::int64_t most_heads = kMostRows / std::min<std::int64_t>(kStrip, args.count);
  const std::int64_t parts = std::clamp<std::int64_t>(
      std::max(ceil_div(wanted, G * strips), ceil_div(heads, most_heads)), 1, heads);
  const auto new_rows_first = [&](std::int64_t task) { return task < G ? 0 : G; };
  dispatch_float(args.qkv.dtype, [&]<class T>(T) {
    team.parallel_for_after(
        G + G * strips * parts, new_rows_first, [&](std::int64_t task, int thread) {
          if (task < G) return append<T>(args, task);
          const std::int64_t part = (task - G) % parts, group = (task - G) / parts;
          const std::int64_t first = (first_strip + group / G) * kStrip;
          const std::int64_t begin = heads * part / parts;
          attend<T>(args,
                    {.first = std::max(first, args.first),
                     .end = std::min(first + kStrip, end),
                     .kv_head = group % G,
                     .first_head = begin,
                     .heads = heads * (part + 1) / parts - begin},
                    checked_scratch(args.workspace, floats, team.num_threads(), thread));
        });
  });
}

std::int64_t kv_cache_floats(const AttentionShape& shape) {
  return shape.kv_heads * head_floats(shape);
}

std::int64_t cached_attention_scratch_floats(const AttentionShape& shape) {
  Scratch scratch;
  strip_buffers(shape, scratch);
  return scratch.taken();
}

}  // namespace sherd::kernels::cpu
