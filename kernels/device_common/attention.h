/// Which form computes attention on a GPU, its scratch, and the index arithmetic of our own form.
/// Pure functions of shape, type and determinism.
#pragma once

#include <algorithm>

#include "core/dtype.h"
#include "core/error.h"
#include "core/host_device.h"
#include "kernels/attention.h"
#include "kernels/device_common/math.h"
#include "kernels/device_common/soft_cap.h"

namespace sherd::kernels::device_common {

/// cuDNN computes on tensor cores. Our own kernels (kernels/cuda/attention_tiles.cu), in f32
/// without tensor cores, compute what cuDNN refuses (f32, heads of other widths, a single position,
/// gradients of keys and values in f32) and what we don't use it for: windows, soft caps,
/// documents, a part of the queries. cuDNN computes a block of keys if every query sees all of
/// them, or all those up to its own position.
enum class AttentionForm { kOwn, kCudnn };

/// The columns of values that cuDNN computes: a multiple of 8, as it wants. Those that it computes
/// in vain are zeros.
inline std::int64_t cudnn_value_width(const AttentionShape& shape) {
  return std::min(shape.head_width, (shape.values_width() + 7) / 8 * 8);
}

/// For a block: whether some query doesn't see a key before its own position.
inline bool window_cuts(const AttentionShape& shape) {
  if (!shape.block) return shape.windowed();
  return shape.window > 0 &&
         shape.window < shape.first_query + shape.queries - shape.block.first_key;
}

inline AttentionForm attention_form(const AttentionShape& shape, DType dtype,
                                    bool has_documents = false) {
  const bool takes = size_of(dtype) == 2 && shape.head_width % 8 == 0 && shape.head_width <= 256 &&
                     shape.num_keys() > 1;
  const bool whole = shape.queries == 0 && !shape.shares_keys;
  const bool halves = shape.block && shape.queries == shape.block.keys;
  const bool asked =
      !window_cuts(shape) && shape.softcap == 0.0f && !has_documents && (whole || halves);
  return takes && asked ? AttentionForm::kCudnn : AttentionForm::kOwn;
}

/// The scratch begins with the two words of cuDNN's dropout.
inline constexpr std::int64_t kAttentionSeedBytes = 256;

/// Maximum scratch of a cuDNN plan. The actual need is known only with the run's cuDNN and GPU. So
/// this reserves what its graphs are known to hold (cudnn_frontend 1.32, sdpa_backward, on Hopper):
/// the sums of dout * out; key and value gradients of every query head, if heads share them; and
/// the sums of dQ in f32 or, if the order of sums is fixed, all of dP in 16 bits instead. The last
/// grows with S * S. A plan that needs more is refused, with its size.
/// tests/cuda_plans/attention_graph_test.cpp checks this with cuDNN for an H100.
inline std::int64_t cudnn_attention_bytes(const AttentionShape& shape, bool deterministic) {
  constexpr std::int64_t kSlack = 16 << 20, kTile = 128;
  const std::int64_t heads = shape.sequences * shape.query_heads;
  const std::int64_t positions = (shape.num_keys() + kTile - 1) / kTile * kTile;
  const std::int64_t row = shape.head_width * 4;
  const std::int64_t shared = shape.query_heads == shape.kv_heads ? 0 : 2 * row;
  const std::int64_t dq = deterministic ? positions * 2 : row;
  return heads * positions * (8 + shared + dq) + kSlack;
}

/// Scratch of a block computed by cuDNN: cuDNN's own scratch, then this block's log-sum-exp [B, H,
/// n] in f32, then its result [B * n, H * K] or its gradients [B * n, (H + 2 G) * K] in 16 bits, of
/// n queries and as many keys.
struct BlockScratch {
  std::int64_t lse = 0, rows = 0, bytes = 0;  ///< offsets, and the total

  BlockScratch(const AttentionShape& shape, bool deterministic) {
    const auto aligned = [](std::int64_t at) { return (at + 255) / 256 * 256; };
    const std::int64_t tokens = shape.sequences * shape.num_keys();
    lse = aligned(kAttentionSeedBytes + cudnn_attention_bytes(shape, deterministic));
    rows = aligned(lse + tokens * shape.query_heads * 4);
    bytes = rows + tokens * shape.packed_width() * 2;
  }
};

/// Enough for cuDNN and for our own kernels, with and without documents, and for layers with and
/// without the window.
inline std::int64_t attention_workspace_bytes(AttentionShape shape, DType dtype,
                                              bool deterministic) {
  shape.window = 0;
  const std::int64_t own = shape.query_tokens() * shape.query_heads * 4;  // D of every query
  if (attention_form(shape, dtype) == AttentionForm::kOwn) return own;
  // Its reserve holds D, except for a block of a long row.
  if (shape.block) return std::max(own, BlockScratch(shape, deterministic).bytes);
  return kAttentionSeedBytes + cudnn_attention_bytes(shape, deterministic);
}

/// The seed of cuDNN's dropout. It depends only on (seed, step, layer, first global row, first
/// head) and a block's position.
inline std::int64_t cudnn_dropout_seed(const AttentionShape& shape, const Dropout& dropout) {
  const std::int64_t first =
      dropout.first_element +
      (shape.first_query_head * shape.positions + shape.first_query) * shape.positions +
      shape.block.first_key;
  const RandomBlock block = random_block(dropout.address, static_cast<std::uint64_t>(first));
  const std::uint64_t word = static_cast<std::uint64_t>(block.word[0]) << 32 | block.word[1];
  return static_cast<std::int64_t>(word >> 1);
}

/// Calls `function.template operator()<kChunks>()` with the number of chunks of `kLanes` columns
/// that hold a head of up to 64, 128 or 256 columns.
/// Errors   UsageError: a wider head.
template <int kLanes, class Function>
void dispatch_head_width(std::int64_t width, const Function& function) {
  if (width <= 64) return function.template operator()<64 / kLanes>();
  if (width <= 128) return function.template operator()<128 / kLanes>();
  if (width <= kWidestGpuHead) return function.template operator()<256 / kLanes>();
  throw UsageError("attention heads of width {} aren't computed on GPUs; the widest is {}", width,
                   kWidestGpuHead);
}

/// Lets a sink join a row's softmax: changes lse, and returns the factor of the row's result. The
/// CPU's bits (kernels/cpu/attention/attention_strip.h).
SHERD_HOST_DEVICE inline float join_sink(float sink, float& lse) {
  const float without = lse, most = sink > without ? sink : without;
  lse = most + fast_log(fast_exp(without - most) + fast_exp(sink - most));
  return fast_exp(without - lse);
}

/// Merges a query's results over two sets of keys (kernels/attention.h). lse over no keys is
/// -infinity. If there are no keys at all, in padding, the statistic is 0.
class Merged {
 public:
  SHERD_HOST_DEVICE Merged(float lse, float own_lse) {
    if (own_lse == -kInfinity) {
      if (lse != -kInfinity) lse_ = lse, kept_ = 1.0f;
    } else if (lse == -kInfinity) {
      lse_ = own_lse, added_ = 1.0f;
    } else {
      const float most = lse > own_lse ? lse : own_lse;
      lse_ = most + fast_log(fast_exp(lse - most) + fast_exp(own_lse - most));
      kept_ = fast_exp(lse - lse_), added_ = fast_exp(own_lse - lse_);
    }
  }
  SHERD_HOST_DEVICE float statistic() const { return lse_; }
  SHERD_HOST_DEVICE float result(float before, float own) const {
    return fmaf(added_, own, kept_ * before);
  }

 private:
  float lse_ = 0.0f, kept_ = 0.0f, added_ = 0.0f;
};

/// Rows of queries or keys per thread block of our own form.
inline constexpr std::int64_t kAttentionTile = 32;

/// Which keys a query sees, and which queries see a key: positions of their row.
class Sight {
 public:
  Sight() = default;
  Sight(const AttentionShape& shape, const Documents& documents)
      : starts_(documents.starts.as<std::int32_t>()),
        lengths_(documents.lengths.as<std::int32_t>()),
        documents_(documents.count()),
        positions_(shape.positions),
        window_(shape.windowed() ? shape.window : shape.positions) {}

  /// The first key that query q of row b sees; it sees all from there to its own. q + 1: none, in
  /// padding.
  SHERD_HOST_DEVICE std::int64_t first_key(std::int64_t b, std::int64_t q) const {
    const Extent own = document_of(b, q);
    if (q >= own.end) return q + 1;
    const std::int64_t windows_first = q - window_ + 1;
    return windows_first > own.begin ? windows_first : own.begin;
  }
  /// One past the last query that sees key k; the first is at its own position. k: none, in
  /// padding.
  SHERD_HOST_DEVICE std::int64_t end_of_queries(std::int64_t b, std::int64_t k) const {
    const Extent own = document_of(b, k);
    if (k >= own.end) return k;
    return k + window_ < own.end ? k + window_ : own.end;
  }

 private:
  struct Extent {
    std::int64_t begin, end;
  };
  /// The last document that begins at or before the position, which may lie in the padding after
  /// it.
  SHERD_HOST_DEVICE Extent document_of(std::int64_t b, std::int64_t position) const {
    if (starts_ == nullptr) return {0, positions_};
    const std::int64_t row = b * positions_, token = row + position;
    std::int64_t before = 0,
                 after = documents_;  // the first document that starts after it is in this range
    while (before < after) {
      const std::int64_t middle = (before + after) / 2;
      if (starts_[middle] <= token) {
        before = middle + 1;
      } else {
        after = middle;
      }
    }
    const std::int64_t begin = starts_[before - 1] - row;
    return {begin, begin + lengths_[before - 1]};
  }

  const std::int32_t *starts_ = nullptr, *lengths_ = nullptr;
  std::int64_t documents_ = 0, positions_ = 0, window_ = 0;
};

struct AttentionTask {
  std::int64_t b, head, tile;
};

/// Where the rows of one head lie in the packed tensors, in elements. Every sequence has N keys and
/// values from position `first_key` on, and Q queries from `first_query` on. Tensors have
/// `query_rows` and `key_rows` rows per sequence; the queries and keys begin at rows `query_at` and
/// `key_at`.
struct AttentionLayout {
  std::int64_t B, S, H, G, K;
  std::int64_t Q, first_query, query_rows, query_at;
  std::int64_t N, first_key, key_rows, key_at;
  bool keys_apart;  // rows have keys and values only, separate from queries
  std::int64_t all_heads,
      first_head;  // query heads of the model, and the first one here

  AttentionLayout() = default;
  explicit AttentionLayout(const AttentionShape& shape)
      : AttentionLayout(shape, shape.queries > 0) {}
  AttentionLayout(const AttentionShape& shape, bool keys_and_values_apart)
      : B(shape.sequences),
        S(shape.positions),
        H(shape.query_heads),
        G(shape.kv_heads),
        K(shape.head_width),
        Q(shape.num_queries()),
        first_query(shape.first_query),
        query_rows(shape.block ? shape.block.rows : Q),
        query_at(shape.block.query_row),
        N(shape.num_keys()),
        first_key(shape.block.first_key),
        key_rows(shape.block ? shape.block.rows : N),
        key_at(shape.block.key_row),
        keys_apart(keys_and_values_apart),
        all_heads(shape.all_query_heads > 0 ? shape.all_query_heads : shape.query_heads),
        first_head(shape.first_query_head) {}

  SHERD_HOST_DEVICE static std::int64_t tiles_of(std::int64_t positions) {
    return (positions + kAttentionTile - 1) / kAttentionTile;
  }
  SHERD_HOST_DEVICE std::int64_t num_query_tasks() const { return B * H * tiles_of(Q); }
  SHERD_HOST_DEVICE std::int64_t num_key_tasks() const { return B * G * tiles_of(N); }
  /// Tiles with the most work come first: the last queries, the first keys.
  SHERD_HOST_DEVICE AttentionTask query_task(std::int64_t block) const {
    AttentionTask task = task_of(block, H);
    task.tile = tiles_of(Q) - 1 - task.tile;
    return task;
  }
  SHERD_HOST_DEVICE AttentionTask key_task(std::int64_t block) const { return task_of(block, G); }

  SHERD_HOST_DEVICE std::int64_t group_of(std::int64_t h) const { return h / (H / G); }
  SHERD_HOST_DEVICE std::int64_t packed_row() const { return (H + 2 * G) * K; }
  SHERD_HOST_DEVICE std::int64_t out_row() const { return H * K; }
  /// Row length of the tensor with the keys and values.
  SHERD_HOST_DEVICE std::int64_t key_row() const { return keys_apart ? 2 * G * K : packed_row(); }
  /// One past the position of the last key.
  SHERD_HOST_DEVICE std::int64_t end_of_keys() const { return first_key + N; }
  /// Where the tile with the key at this position begins; for earlier positions, the first tile.
  SHERD_HOST_DEVICE std::int64_t tile_with(std::int64_t position) const {
    const std::int64_t after = position > first_key ? position - first_key : 0;
    return first_key + after / kAttentionTile * kAttentionTile;
  }
  /// The first query, or key, of a head; the next is one row further.
  SHERD_HOST_DEVICE std::int64_t query(std::int64_t b, std::int64_t h) const {
    return (b * query_rows + query_at) * packed_row() + h * K;
  }
  SHERD_HOST_DEVICE std::int64_t key(std::int64_t b, std::int64_t g) const {
    return (b * key_rows + key_at) * key_row() + ((keys_apart ? 0 : H) + g) * K;
  }
  SHERD_HOST_DEVICE std::int64_t value(std::int64_t b, std::int64_t g) const {
    return key(b, g) + G * K;
  }
  SHERD_HOST_DEVICE std::int64_t out(std::int64_t b, std::int64_t h) const {
    return (b * query_rows + query_at) * out_row() + h * K;
  }
  /// Index into lse and D, [B, H, query_rows].
  SHERD_HOST_DEVICE std::int64_t statistic(std::int64_t b, std::int64_t h) const {
    return (b * H + h) * query_rows + query_at;
  }
  /// The dropout element of query and key at these positions.
  SHERD_HOST_DEVICE std::int64_t element(std::int64_t b, std::int64_t h, std::int64_t q,
                                         std::int64_t k) const {
    return ((b * all_heads + first_head + h) * S + q) * S + k;
  }
  /// Index into f32 gradients of keys and values, [B * key_rows, 2 G K].
  SHERD_HOST_DEVICE std::int64_t wide_key(std::int64_t b, std::int64_t g) const {
    return (b * key_rows + key_at) * 2 * G * K + g * K;
  }

 private:
  SHERD_HOST_DEVICE AttentionTask task_of(std::int64_t block, std::int64_t heads) const {
    return {block / heads % B, block % heads, block / (heads * B)};
  }
};

}  // namespace sherd::kernels::device_common
