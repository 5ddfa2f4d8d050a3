/// What both directions of attention on a CPU share: where heads lie, scratch, and how the work is
/// cut. B sequences, S positions, H query heads, G key/value heads, K head width.
///
/// A task is one query head of one sequence (forward) or one key/value head of one sequence with its
/// group (backward). The right factors of all matmuls are packed once per head, in panels; the left
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

// Where one head of one sequence lies in rows of `stride` elements.
template <class T>
struct HeadRows {
  T* first;
  std::int64_t stride;
};

enum class Part { kQuery, kKey, kValue };

template <class T>
HeadRows<T> packed_head(T* qkv, const AttentionShape& shape, std::int64_t b, Part part,
                        std::int64_t head) {
  const std::int64_t before = part == Part::kQuery ? 0
                              : part == Part::kKey ? shape.query_heads
                                                   : shape.query_heads + shape.kv_heads;
  const std::int64_t stride = shape.packed_width();
  return {qkv + b * shape.positions * stride + (before + head) * shape.head_width, stride};
}

template <class T>
HeadRows<T> out_head(T* out, const AttentionShape& shape, std::int64_t b, std::int64_t h) {
  const std::int64_t stride = shape.query_heads * shape.head_width;
  return {out + b * shape.positions * stride + h * shape.head_width, stride};
}

template <class T>
void load_head(const HeadRows<const T>& head, const AttentionShape& shape, float* out_SK) {
  widen_rows(head.first, head.stride, out_SK, shape.head_width, shape.positions, shape.head_width);
}

// The head's rows as f32: where they lie, or copied to `copy_SK`.
template <class T>
MatrixView view_head(const HeadRows<const T>& head, const AttentionShape& shape, float* copy_SK) {
  if constexpr (std::is_same_v<T, float>) return {head.first, head.stride};
  load_head(head, shape, copy_SK);
  return {copy_SK, shape.head_width};
}

template <class T>
void store_head(const float* in_SK, const AttentionShape& shape, const HeadRows<T>& head) {
  narrow_rows(in_SK, shape.head_width, head.first, head.stride, shape.positions, shape.head_width);
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

// The dropout's element of (b, h, q, key 0).
inline std::int64_t element_of(const AttentionShape& shape, std::int64_t b, std::int64_t h,
                               std::int64_t q) {
  return ((b * shape.query_heads + h) * shape.positions + q) * shape.positions;
}

/// The part of the workspace that is one thread's.
inline Scratch checked_scratch(const Tensor& workspace, std::int64_t floats, int num_threads,
                               int thread) {
  CHECK(workspace.bytes() >= floats * 4 * num_threads,
        "attention: a workspace of {} bytes, {} needed", workspace.bytes(),
        floats * 4 * num_threads);
  return Scratch(static_cast<float*>(workspace.data) + thread * floats);
}

}  // namespace sherd::kernels::cpu
