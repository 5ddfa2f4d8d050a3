/// Causal self-attention with grouped queries, tiled: no sequence x sequence buffer exists.
///
///   s[q,k] = scale * <Q[q,:], K[k,:]>          for q - window < k <= q
///   s[q,k] = softcap * tanh(s[q,k] / softcap)  with a soft cap
///   p      = softmax over k of s
///   o[q,:] = sum over k of drop(p)[q,k] V[k,:]
///   lse[q] = log sum over k of exp(s[q,k])     kept for the backward instead of p
///
/// Backward (Dao et al. 2022, FlashAttention, Alg. 4):
///
///   D[q]    = <do[q,:], o[q,:]>
///   dp[q,k] = mask * <do[q,:], V[k,:]>
///   ds      = p (dp - D),  times 1 - (s / softcap)^2 with a soft cap
///   dQ      = scale ds K
///   dK      = scale ds^T Q
///   dV      = drop(p)^T do
///
/// Query head h reads key/value head h / (H / G). scale is 1 / sqrt(K) unless given. Without a
/// window (0, or at least the row's length) a query sees all keys up to its own; with a window W it
/// sees W of them. The soft cap comes from Gemma 2 (arXiv:2408.00118, §2).
///
/// With `documents` (kernels/documents.h), a query sees only keys of its own document: k also
/// starts there. out, lse and dqkv of padding are zero. On a CPU the documents' positions aren't
/// needed.
///
/// If only some queries are computed (`queries` of the shape), qkv, out, lse and their gradients
/// have rows for these only. `keys_values` holds the keys and values of all positions; their
/// gradients come from these queries only.
///
/// With a block of the keys (`block` of the shape), the forward's out is f32 and the softmax sums
/// over these keys only. Results of blocks are merged with (Milakov and Gimelshein,
/// arXiv:1805.02867):
///
///   lse = m + log(exp(lse_1 - m) + exp(lse_2 - m)),  m the larger of the two
///   o   = exp(lse_1 - lse) o_1 + exp(lse_2 - lse) o_2
///
/// The backward of a block receives out and lse of all keys, so its p are normalised over all keys.
/// Its gradients are added in f32 to dq and dkv.
///
/// Shapes    qkv and dqkv [B * S, (H + 2 G) * K] packed (all query heads, key heads, value heads);
///           out and dout [B * S, H * K]; lse [B, H, S] f32.
/// Types     qkv, out and gradients of one type (f32, bf16, f16); softmax and sums in f32. In bf16,
///           the factors of values, queries, keys and do (p before division by its row's sum,
///           drop(p), ds) are rounded to bf16 first, on CPUs and by cuDNN; cuDNN rounds in f16,
///           too.
/// Dropout   element ((row * H + h) * S + q) * S + k, row counted within this micro-batch and
///           `first_element` set by the caller to its first global row times H * S * S. If ranks
///           divide a model's heads, H and h count all of them.
/// Bits      tiles are fixed by the shape; the number of threads changes nothing. A query's out,
///           lse and dQ depend only on its position, whichever other queries are computed. Without
///           dropout, a document is bit-identical to the same document alone in a row: its tiles
///           start with it.
/// Cost      with a window, tiles that no query sees are skipped. With documents, the sum of their
///           squared lengths; padding costs nothing.
/// Workspace `attention_workspace_bytes`. CPU: proportional to threads * tile * S, never S * S.
/// Alias     nothing.
///
/// On a GPU, cuDNN computes 16-bit heads whose width is a multiple of 8. Our own kernels, in f32
/// without tensor cores, compute the rest (heads up to 256 wide), and all heads with a window, a
/// soft cap, documents (whose results depend on their row there), a part of the queries, or f32
/// gradients of keys and values. cuDNN computes blocks that no window cuts: their results and
/// gradients are rounded to 16 bits before they are merged and added in f32. Limits of cuDNN:
///   Dropout   cuDNN draws the mask from a seed (derived from seed, step, site, first_element, the
///             first head and the block's position) and the position in the micro-batch. Forward
///             and backward agree, and runs are repeatable. The CPU and other micro-batch sizes
///             have other masks.
///   Bits      repeatable on streams that are `deterministic`.
///   Workspace a fixed reserve (kernels/device_common/attention.h): its plan's size is known
///             only on the GPU. Deterministic plans keep dP, B * H * S * S of 16 bits.
///   Errors    UsageError with the shape and the cuDNN version if no plan fits.
/// Sinks: with a number z_h for each query head (`sinks`), the softmax has one more score, z_h, whose
/// value is zero (OpenAI's gpt-oss). So lse = log(exp(z_h) + the sum over keys), and out is
/// exp(lse' - lse) times what it would be, with lse' that without a sink. The backward takes out and
/// lse as they are; attention_sinks_gradient gives dz_h = - the sum over queries of
/// exp(z_h - lse) <dout, out>. Where the softmax was computed without sinks, of blocks of keys or by
/// cuDNN, join_attention_sinks adds them afterwards; results of cuDNN are rounded to 16 bits first.
/// The largest score of each head, if it is asked for (`maxima`): over the queries and keys of this
/// call that see one another, s as in the first line, before the soft cap and dropout. On a CPU it
/// costs a comparison of each score. On a GPU, a kernel of ours computes the scores again in f32,
/// also where cuDNN computes attention. Scores that are NaN don't count.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/device.h"
#include "kernels/documents.h"
#include "kernels/dropout.h"

namespace sherd::kernels {

/// Columns of a head on a GPU, at most.
inline constexpr std::int64_t kWidestGpuHead = 256;

/// The keys [first_key, first_key + keys) of every sequence, at the queries' own positions or
/// earlier.
struct AttentionBlock {
  std::int64_t first_key = 0, keys = 0;     ///< 0 keys: all of them
  std::int64_t rows = 0;                    ///< per sequence, in all query and key tensors
  std::int64_t query_row = 0, key_row = 0;  ///< first row of the block's queries and keys

  explicit operator bool() const { return keys > 0; }
};

struct AttentionShape {
  std::int64_t sequences = 0;    ///< B
  std::int64_t positions = 0;    ///< S
  std::int64_t query_heads = 0;  ///< H
  std::int64_t kv_heads = 0;     ///< G, divides H
  std::int64_t head_width = 0;   ///< K
  float scale = 0.0f;            ///< of scores; 0: 1 / sqrt(K)
  std::int64_t window = 0;       ///< keys that a query sees, including its own; 0: all before it
  float softcap = 0.0f;          ///< 0: none
  /// If these are only some of a model's heads: the first query head's index, and the number of
  /// all. 0 and 0: these are all heads.
  std::int64_t first_query_head = 0, all_query_heads = 0;
  /// dK and dV of a key/value head are balanced trees over this many groups (2^n) of its query
  /// heads, so that ranks with some of the heads have subtrees (kernels/grouped_linear.h). 1: the
  /// query heads in order. A GPU takes 1.
  int kv_sum_groups = 1;
  /// Only the queries [first_query, first_query + queries) of every sequence. 0: all queries.
  std::int64_t first_query = 0, queries = 0;
  /// dK and dV are balanced trees over query_groups (2^n) groups of of_a_query_group queries each,
  /// within each group of query heads: kernels/token_groups.h. 0: all queries in order. A GPU takes
  /// 0.
  int query_groups = 0;
  std::int64_t of_a_query_group = 0;
  AttentionBlock block{};  ///< with `queries`
  /// Other ranks' query heads read these keys and values, so the backward gives their gradients in
  /// f32 (`dkv`). Set for both directions, since on a GPU it decides which kernels are used.
  bool shares_keys = false;
  /// V: columns of a value after the first V are zeros, as latent attention fills them up
  /// (kernels/latent_heads.h). 0: K. cuDNN computes V columns, rounded up to a multiple of 8. It
  /// doesn't write the other columns of out and dV, and nothing reads them.
  std::int64_t value_width = 0;

  std::int64_t values_width() const { return value_width > 0 ? value_width : head_width; }
  std::int64_t tokens() const { return sequences * positions; }
  std::int64_t num_queries() const { return queries > 0 ? queries : positions; }  ///< of a sequence
  /// Keys of a sequence that one call reads.
  std::int64_t num_keys() const { return block ? block.keys : positions; }
  /// Rows of tensors of queries, and of keys.
  std::int64_t query_tokens() const { return sequences * (block ? block.rows : num_queries()); }
  std::int64_t key_tokens() const { return sequences * (block ? block.rows : positions); }
  bool windowed() const { return window > 0 && (block || window < positions); }
  float score_scale() const {
    return scale > 0.0f ? scale : 1.0f / std::sqrt(static_cast<float>(head_width));
  }
  std::int64_t packed_width() const { return (query_heads + 2 * kv_heads) * head_width; }
};

/// f32 numbers as integers of the same order, so that the larger integer is the larger number. 0 is
/// below all: no number yet.
SHERD_HOST_DEVICE inline std::uint32_t ordered_word(std::uint32_t bits) {
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
/// The number of such a word; 0: -infinity.
inline float number_of_ordered(std::uint32_t word) {
  if (word == 0) return -std::numeric_limits<float>::infinity();
  return std::bit_cast<float>((word >> 31) != 0 ? word & 0x7fffffffu : ~word);
}

struct AttentionForward {
  AttentionShape shape;
  ConstTensor qkv;
  Dropout dropout;
  Tensor out, lse;
  Tensor workspace;
  Documents documents{};
  ConstTensor keys_values{};  ///< [B * S, 2 * G * K], if only some queries are computed
  /// With a block: merge the result with out and lse. The block's keys and values may be in qkv,
  /// too. false: out and lse are overwritten, with zeros for padding.
  bool merge = false;
  /// i32 [H], or empty: each head's largest score joins what is there, as `ordered_word`s.
  Tensor maxima{};
  ConstTensor sinks{};  ///< [H] of qkv's type, or empty
};
void attention_forward(Stream& stream, const AttentionForward& args);

struct AttentionBackward {
  AttentionShape shape;
  ConstTensor qkv, out, lse, dout;
  Dropout dropout;
  Tensor dqkv;  ///< fully written, except for what goes to dkv; empty with a block
  Tensor workspace;
  Documents documents{};
  /// f32 [B * S, 2 * G * K], or empty. Unrounded gradients of keys and values, for when other
  /// ranks' query heads read them and add their part. A GPU then needs `shares_keys` in the shape.
  Tensor dkv{};
  ConstTensor keys_values{};  ///< if only some queries are computed; dkv is then set too
  /// dkv is [kv_sum_groups, B * S, 2 * G * K], one part per group of query heads. If other ranks
  /// have the other queries of the same heads, each group is first summed over these ranks, then
  /// over groups.
  bool dkv_of_each_group = false;
  Tensor dq{};  ///< with a block: f32 [B * S, H * K]
};
void attention_backward(Stream& stream, const AttentionBackward& args);

/// Adds sinks to a softmax without them: all queries of a shape without a block.
struct AttentionJoinSinks {
  AttentionShape shape;
  ConstTensor sinks;  ///< [H], f32, bf16 or f16
  Tensor out;         ///< [query_tokens, H K] of any of these types
  Tensor lse;
};
void join_attention_sinks(Stream& stream, const AttentionJoinSinks& args);

/// The gradient of sinks; all queries of a shape without a block. On a CPU, sums run in the order of
/// rows, in f64, and are rounded once. On a GPU, dot products are f32, and their sums f64 in a fixed
/// order.
struct AttentionSinksGradient {
  AttentionShape shape;
  ConstTensor out, lse, dout, sinks;
  Tensor d_sinks;  ///< [H], overwritten; f32 or qkv's type
};
void attention_sinks_gradient(Stream& stream, const AttentionSinksGradient& args);

/// Enough for both directions at every shape with at most this many sequences and positions.
std::int64_t attention_workspace_bytes(const AttentionShape& most, DType dtype,
                                       const ComputeDevice& device);

}  // namespace sherd::kernels
