/// Shared by both directions of attention on a CPU: where heads lie, scratch, and how the work is
/// divided. B sequences, S positions, H query heads, G key/value heads, K head width.
///
/// A task is one query head of one sequence (forward) or one key/value head of one sequence with
/// its group (backward), document by document. The right factors of all matmuls are packed once per
/// head, in panels; the left ones are read in place, or converted to units of their type
/// (panels.h). Every instruction set processes the same strips and tiles.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "kernels/attention.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/matmul/panels.h"
#include "kernels/cpu/round_up.h"
#include "kernels/cpu/vector_math.h"

namespace sherd::kernels::cpu {

inline constexpr std::int64_t kStrip = 24;  ///< rows or keys at a time along a mask's edge
inline constexpr std::int64_t kLine = 16;   ///< floats of a cache line

// Allocates pieces of one thread's scratch, each at a cache line; without memory it only counts.
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

/// What a query may see: one document of row `row`, or its part from position `first` on. With a
/// block of keys: the document's keys in the block, where its positions begin.
struct Document {
  AttentionShape shape;  ///< with the document's positions and its computed queries
  std::int64_t row = 0, first = 0;
  std::int64_t row_positions = 0,
               row_queries = 0;              ///< of the whole row: computed queries
  std::int64_t num_queries = 0;              ///< computed queries of the document; may be 0
  std::int64_t place = 0;                    ///< of the first of these among the row's queries
  std::int64_t padding = 0;                  ///< tokens after it
  std::int64_t query_padding = 0;            ///< of these, among the computed queries
  std::int64_t key_rows = 0, key_place = 0;  ///< per sequence; the row of its first key

  /// Whether none of its queries is computed, or it has no keys.
  bool empty() const { return num_queries == 0 || shape.positions == 0; }
  std::int64_t first_key_row() const { return row * key_rows + key_place; }
  /// Row of the first computed query, and its position in lse.
  std::int64_t first_query_row() const { return row * row_queries + place; }
  std::int64_t statistic(std::int64_t h) const {
    return (row * shape.query_heads + h) * row_queries + place;
  }
  /// The document with only one group of its queries; AttentionShape::query_groups.
  Document group_of_queries(int group) const {
    Document part = *this;
    const std::int64_t begin = std::min(group * shape.of_a_query_group, num_queries);
    part.place = place + begin;
    part.num_queries = std::min(shape.of_a_query_group, num_queries - begin);
    part.shape.first_query = shape.first_query + begin;
    part.shape.queries = part.num_queries;
    return part;
  }
  /// The dropout element of query q, key 0.
  std::int64_t element(std::int64_t h, std::int64_t q) const {
    const std::int64_t heads =
        shape.all_query_heads > 0 ? shape.all_query_heads : shape.query_heads;
    const std::int64_t head = row * heads + shape.first_query_head + h;
    return (head * row_positions + first + q) * row_positions + first;
  }
};

/// A document of `length` tokens of row `row`, followed by `padding`.
inline Document document_at(const AttentionShape& shape, std::int64_t row, std::int64_t first,
                            std::int64_t length, std::int64_t padding) {
  const AttentionBlock& block = shape.block;
  const std::int64_t after = first + length;
  // The keys of the row, and those of the document among them.
  const std::int64_t all_keys = block ? block.first_key : 0;
  const std::int64_t first_key = std::clamp(all_keys, first, after);
  const std::int64_t end_key = std::clamp(all_keys + shape.num_keys(), first_key, after);
  Document document{.shape = shape,
                    .row = row,
                    .first = first_key,
                    .row_positions = shape.positions,
                    .row_queries = block ? block.rows : shape.num_queries(),
                    .padding = padding,
                    .key_rows = block ? block.rows : shape.positions,
                    .key_place = block.key_row + first_key - all_keys};
  // The computed queries of the row, and those of the document among them.
  const std::int64_t begin = shape.first_query, end = begin + shape.num_queries();
  const std::int64_t from = std::clamp(begin, first, after);
  document.num_queries = std::clamp(end, from, after) - from;
  document.place = block.query_row + std::max<std::int64_t>(from - begin, 0);
  document.query_padding = std::clamp(after + padding, begin, end) - std::clamp(after, begin, end);
  document.shape.positions = end_key - first_key;
  if (shape.queries > 0) {
    document.shape.first_query = from - first_key;
    document.shape.queries = document.num_queries;
  }
  return document;
}

/// Calls `visit` for the documents of row `row`, in order.
template <class Visit>
void for_each_document(const AttentionShape& shape, const Documents& documents, std::int64_t row,
                       const Visit& visit) {
  const std::int64_t S = shape.positions, begin = row * S, end = begin + S;
  if (!documents) return visit(document_at(shape, row, 0, S, 0));
  const auto* starts = documents.starts.as<std::int32_t>();
  const auto* lengths = documents.lengths.as<std::int32_t>();
  for (std::int64_t i = documents.first_from(begin); i < documents.count() && starts[i] < end;
       ++i) {
    const std::int64_t padding =
        std::min<std::int64_t>(starts[i + 1], end) - starts[i] - lengths[i];
    SHERD_CHECK(lengths[i] >= 0 && padding >= 0, "document {} of {} tokens at {}, the next at {}",
                i, lengths[i], starts[i], starts[i + 1]);
    visit(document_at(shape, row, starts[i] - begin, lengths[i], padding));
  }
}

// Where one head of one document lies in rows of `stride` elements.
template <class T>
struct HeadRows {
  T* first;
  std::int64_t stride;
};

enum class Part { kQuery, kKey, kValue };

template <class T>
HeadRows<T> packed_head(T* qkv, const AttentionShape& shape, std::int64_t first_token, Part part,
                        std::int64_t head) {
  const std::int64_t before = part == Part::kQuery ? 0
                              : part == Part::kKey ? shape.query_heads
                                                   : shape.query_heads + shape.kv_heads;
  const std::int64_t stride = shape.packed_width();
  return {qkv + first_token * stride + (before + head) * shape.head_width, stride};
}

template <class T>
HeadRows<T> out_head(T* out, const AttentionShape& shape, std::int64_t first_token,
                     std::int64_t h) {
  const std::int64_t stride = shape.query_heads * shape.head_width;
  return {out + first_token * stride + h * shape.head_width, stride};
}

// The keys or values of head g: in the packed rows, or separate if only some queries are computed.
template <class T>
HeadRows<const T> key_value_head(const ConstTensor& qkv, const ConstTensor& keys_values,
                                 const Document& document, Part part, std::int64_t g) {
  const AttentionShape& shape = document.shape;
  if (!keys_values) return packed_head(qkv.as<T>(), shape, document.first_key_row(), part, g);
  const std::int64_t stride = 2 * shape.kv_heads * shape.head_width;
  const std::int64_t before = part == Part::kKey ? 0 : shape.kv_heads;
  return {keys_values.as<T>() + document.first_key_row() * stride + (before + g) * shape.head_width,
          stride};
}

template <class T>
StoredRows stored(const HeadRows<T>& head) {
  return {head.first, head.stride};
}

// `rows` of the head as f32: in place, or copied to `copy_SK`.
template <class T>
MatrixView view_head(const HeadRows<const T>& head, std::int64_t rows, std::int64_t head_width,
                     float* copy_SK) {
  if constexpr (std::is_same_v<T, float>) return {head.first, head.stride};
  widen_rows(head.first, head.stride, copy_SK, head_width, rows, head_width);
  return {copy_SK, head_width};
}

// Writes zeros to `padding` rows of the head after `rows` of a document.
template <class T>
void clear_padding(const HeadRows<T>& head, std::int64_t rows, std::int64_t padding,
                   std::int64_t head_width) {
  T* row = head.first + rows * head.stride;
  for (std::int64_t i = 0; i < padding; ++i, row += head.stride) std::fill_n(row, head_width, T{});
}

// The first key that query q sees.
inline std::int64_t first_key(const AttentionShape& shape, std::int64_t q) {
  return shape.windowed() ? std::max<std::int64_t>(0, q - shape.window + 1) : 0;
}

/// The soft cap of scores: cap tanh(s / cap).
struct SoftCap {
  explicit SoftCap(float cap) : cap(cap), inverse(1.0f / cap) {}
  float tanh_of(float score) const { return fast_tanh(score * inverse); }
  float cap, inverse;
};

/// One thread's part of the workspace.
inline Scratch checked_scratch(const Tensor& workspace, std::int64_t floats, int num_threads,
                               int thread) {
  SHERD_CHECK(workspace.bytes() >= floats * 4 * num_threads,
              "attention: a workspace of {} bytes, {} needed", workspace.bytes(),
              floats * 4 * num_threads);
  return Scratch(static_cast<float*>(workspace.data) + thread * floats);
}

}  // namespace sherd::kernels::cpu
