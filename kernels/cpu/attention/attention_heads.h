/// What both directions of attention on a CPU share: where heads lie, scratch, and how the work is
/// cut. B sequences, S positions, H query heads, G key/value heads, K head width.
///
/// A task is one query head of one sequence (forward) or one key/value head of one sequence with its
/// group (backward), document by document. The right factors of all matmuls are packed once per head, in panels; the left
/// ones are read where they lie. Every instruction set walks the same strips and tiles.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "kernels/attention.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/matmul/panels.h"
#include "kernels/cpu/vector_math.h"

namespace sherd::kernels::cpu {

inline constexpr std::int64_t kStrip = 24;  ///< rows or keys at a time along a mask's edge
inline constexpr std::int64_t kLine = 16;   ///< floats of a cache line

inline std::int64_t round_up(std::int64_t a, std::int64_t b) {
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

/// What a query may see of: one document of row `row`, from its position `first` on, or all of it.
struct Document {
  AttentionShape shape;  ///< with the document's positions
  std::int64_t row = 0, first = 0;
  std::int64_t row_positions = 0;
  std::int64_t padding = 0;  ///< tokens behind it
  /// Where the shape has a group of the queries that are here: rows of all of these in a sequence, and those before it.
  std::int64_t all_query_rows = 0, rows_before = 0;

  std::int64_t first_token() const { return row * row_positions + first; }
  /// Of the queries that are computed, which may be a part: the first one's row, and its place in lse.
  std::int64_t first_query_row() const { return row * query_rows() + first + rows_before; }
  std::int64_t statistic(std::int64_t h) const {
    return (row * shape.query_heads + h) * query_rows() + first + rows_before;
  }
  std::int64_t query_rows() const {
    if (all_query_rows > 0) return all_query_rows;
    return shape.queries > 0 ? shape.queries : row_positions;
  }
  /// With a group of its queries alone; AttentionShape::query_groups.
  Document group_of_queries(int group) const {
    Document part = *this;
    const std::int64_t begin = std::min(group * shape.of_a_query_group, shape.num_queries());
    part.all_query_rows = query_rows();
    part.rows_before = begin;
    part.shape.first_query = shape.first_query + begin;
    part.shape.queries = std::min(shape.of_a_query_group, shape.num_queries() - begin);
    return part;
  }
  /// The dropout's element of query q, key 0.
  std::int64_t element(std::int64_t h, std::int64_t q) const {
    const std::int64_t heads =
        shape.all_query_heads > 0 ? shape.all_query_heads : shape.query_heads;
    const std::int64_t head = row * heads + shape.first_query_head + h;
    return (head * row_positions + first + q) * row_positions + first;
  }
};

/// Calls `visit` for the documents of row `row`, in order.
template <class Visit>
void for_each_document(const AttentionShape& shape, const Documents& documents, std::int64_t row,
                       const Visit& visit) {
  const std::int64_t S = shape.positions, begin = row * S, end = begin + S;
  if (!documents) return visit(Document{shape, row, 0, S});
  const auto* starts = documents.starts.as<std::int32_t>();
  const auto* lengths = documents.lengths.as<std::int32_t>();
  for (std::int64_t i = documents.first_from(begin); i < documents.count() && starts[i] < end;
       ++i) {
    Document document{shape, row, starts[i] - begin, S};
    document.shape.positions = lengths[i];
    document.padding = std::min<std::int64_t>(starts[i + 1], end) - starts[i] - lengths[i];
    CHECK(lengths[i] >= 0 && document.padding >= 0,
          "document {} of {} tokens at {}, the next at {}", i, lengths[i], starts[i],
          starts[i + 1]);
    visit(document);
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

// The keys or values of head g: in the packed rows, or apart where these have a part of the queries.
template <class T>
HeadRows<const T> key_value_head(const ConstTensor& qkv, const ConstTensor& keys_values,
                                 const Document& document, Part part, std::int64_t g) {
  const AttentionShape& shape = document.shape;
  if (!keys_values) return packed_head(qkv.as<T>(), shape, document.first_token(), part, g);
  const std::int64_t stride = 2 * shape.kv_heads * shape.head_width;
  const std::int64_t before = part == Part::kKey ? 0 : shape.kv_heads;
  return {keys_values.as<T>() + document.first_token() * stride + (before + g) * shape.head_width,
          stride};
}

// `rows` of the head as f32: where they lie, or copied to `copy_SK`.
template <class T>
MatrixView view_head(const HeadRows<const T>& head, std::int64_t rows, std::int64_t head_width,
                     float* copy_SK) {
  if constexpr (std::is_same_v<T, float>) return {head.first, head.stride};
  widen_rows(head.first, head.stride, copy_SK, head_width, rows, head_width);
  return {copy_SK, head_width};
}

// Zeros in the head's rows of the padding behind a document.
template <class T>
void clear_padding(const Document& document, const HeadRows<T>& head) {
  T* row = head.first + document.shape.positions * head.stride;
  for (std::int64_t i = 0; i < document.padding; ++i, row += head.stride) {
    std::fill_n(row, document.shape.head_width, T{});
  }
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

/// The part of the workspace that is one thread's.
inline Scratch checked_scratch(const Tensor& workspace, std::int64_t floats, int num_threads,
                               int thread) {
  CHECK(workspace.bytes() >= floats * 4 * num_threads,
        "attention: a workspace of {} bytes, {} needed", workspace.bytes(),
        floats * 4 * num_threads);
  return Scratch(static_cast<float*>(workspace.data) + thread * floats);
}

}  // namespace sherd::kernels::cpu
