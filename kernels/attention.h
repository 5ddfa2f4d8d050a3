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
/// Query head h reads key/value head h / (H / G). scale is 1 / sqrt(K) unless given. Without a window
/// (0, or one as long as the row) a query sees all keys up to its own; with one of W, W of them. The
/// soft cap is Gemma 2's (arXiv:2408.00118, §2).
///
/// With `documents` (kernels/documents.h) a query sees keys of its own document only: k also begins
/// there. Of padding, out, lse and dqkv are zeros. On a CPU the documents' positions aren't needed.
///
/// With a part of the queries (`queries` of the shape), qkv, out, lse and their gradients have rows for these alone,
/// and the keys and values of all positions stand in `keys_values`; their gradients are of these queries.
///
/// With a block of the keys alone (`block` of the shape), the forward's out is f32 and the softmax's sum is over these keys. Results
/// over other keys are merged with (Milakov and Gimelshein, arXiv:1805.02867):
///
///   lse = m + log(exp(lse_1 - m) + exp(lse_2 - m)),  m the larger of the two
///   o   = exp(lse_1 - lse) o_1 + exp(lse_2 - lse) o_2
///
/// The backward of a block is told the whole's out and lse, so its p are those of the whole. Its gradients are added in
/// f32 to what stands in dq and dkv.
///
/// Shapes    qkv and dqkv [B * S, (H + 2 G) * K] packed (all query heads, key heads, value heads);
///           out and dout [B * S, H * K]; lse [B, H, S] f32.
/// Types     qkv, out and gradients of one type (f32, bf16, f16); softmax and sums in f32. Of bf16, what is multiplied
///           with values, queries, keys and do (p before it is divided by its row's sum, drop(p) and ds) is rounded to
///           bf16 first, on a CPU and by cuDNN, which so rounds in f16, too.
/// Dropout   element ((row * H + h) * S + q) * S + k, row counted within this micro-batch and
///           `first_element` set by the caller to its first global row times H * S * S. Where a model's
///           heads are cut over ranks, H and h count all of them.
/// Bits      tiles are fixed by the shape; the number of threads changes nothing. A query's out, lse and dQ follow
///           its position alone, whichever queries are computed beside it. A document has the
///           bits that it has alone in a row, without dropout: its tiles begin with it.
/// Cost      with a window, tiles that no query sees are left out. The squares of the documents'
///           lengths count; padding costs nothing.
/// Workspace `attention_workspace_bytes`. CPU: proportional to threads * tile * S, never S * S.
/// Alias     nothing.
///
/// On a GPU cuDNN computes 16-bit heads whose width is a multiple of 8; our own kernels, in f32 without
/// tensor cores, the rest (heads up to 256 wide), and all heads with a window, a soft cap or documents, whose bits
/// follow the row there, with a part of the queries, or with gradients of keys and values in f32. Of blocks it computes
/// those that no window cuts: their results and gradients are rounded to 16 bits before they are merged and added in f32.
/// What cuDNN doesn't promise, we don't:
///   Dropout   its mask is its own: a function of the seed (seed, step, site, first_element and the first
///             head, and of a block its place, make it) and of the place in the micro-batch. Forward and backward agree and a run
///             repeats its bits; the CPU's mask and another micro-batch size give other ones.
///   Bits      the same from run to run on streams that are `deterministic`.
///   Workspace a fixed reserve (kernels/device_common/attention.h): what its plan wants is known
///             only on the GPU. Deterministic plans keep dP, B * H * S * S of 16 bits.
///   Errors    UsageError with shape and cuDNN's version where it has no plan that fits.
#pragma once

#include <cmath>

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/device.h"
#include "kernels/documents.h"
#include "kernels/dropout.h"

namespace sherd::kernels {

/// Of every sequence, the keys [first_key, first_key + keys) alone, which are those of the queries' own positions or of
/// earlier ones.
struct AttentionBlock {
  std::int64_t first_key = 0, keys = 0;  ///< 0 keys: all of them
  std::int64_t rows = 0;                 ///< of a sequence, in all tensors of queries and of keys
  std::int64_t query_row = 0, key_row = 0;  ///< of these: where the block's queries and keys begin

  explicit operator bool() const { return keys > 0; }
};

struct AttentionShape {
  std::int64_t sequences = 0;    ///< B
  std::int64_t positions = 0;    ///< S
  std::int64_t query_heads = 0;  ///< H
  std::int64_t kv_heads = 0;     ///< G, divides H
  std::int64_t head_width = 0;   ///< K
  float scale = 0.0f;            ///< of scores; 0: 1 / sqrt(K)
  std::int64_t window = 0;       ///< keys that a query sees, its own among them; 0: all before it
  float softcap = 0.0f;          ///< 0: none
  /// Where these are some of a model's heads: the first query head's number among all. 0 of 0: they are all.
  std::int64_t first_query_head = 0, all_query_heads = 0;
  /// dK and dV of a key/value head are balanced trees over so many groups (2^n) of its query heads, so that ranks
  /// with a part of them have subtrees (kernels/grouped_linear.h). 1: the query heads in order. A GPU takes 1.
  int kv_sum_groups = 1;
  /// Of every sequence, the queries [first_query, first_query + queries) alone. 0: all of them.
  std::int64_t first_query = 0, queries = 0;
  /// dK and dV are balanced trees over so many groups (2^n) of so many of these queries each, within each group of
  /// query heads: kernels/token_groups.h. 0: all queries in order. A GPU takes 0.
  int query_groups = 0;
  std::int64_t of_a_query_group = 0;
  AttentionBlock block{};  ///< with `queries`
  /// Other ranks' query heads read these keys and values, so the backward gives their gradients in f32 (`dkv`). Said of
  /// both directions, since on a GPU it decides who computes them.
  bool shares_keys = false;

  std::int64_t tokens() const { return sequences * positions; }
  std::int64_t num_queries() const { return queries > 0 ? queries : positions; }  ///< of a sequence
  /// That are read at a time, of a sequence.
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

struct AttentionForward {
  AttentionShape shape;
  ConstTensor qkv;
  Dropout dropout;
  Tensor out, lse;
  Tensor workspace;
  Documents documents{};
  ConstTensor keys_values{};  ///< [B * S, 2 * G * K], where the queries are a part
  /// With a block, whose keys and values may stand in qkv, too: merged with what stands in out and lse. Otherwise these
  /// are written, of padding zeros.
  bool merge = false;
};
void attention_forward(Stream& stream, const AttentionForward& args);

struct AttentionBackward {
  AttentionShape shape;
  ConstTensor qkv, out, lse, dout;
  Dropout dropout;
  Tensor dqkv;  ///< written whole, but for what goes to dkv; empty with a block
  Tensor workspace;
  Documents documents{};
  /// f32 [B * S, 2 * G * K], or empty: gradients of keys and values go here, unrounded, where they aren't
  /// whole yet because other ranks have query heads that read them. A GPU wants `shares_keys` of the shape then.
  Tensor dkv{};
  ConstTensor keys_values{};  ///< where the queries are a part; then dkv is there, too
  /// dkv is [kv_sum_groups, B * S, 2 * G * K], of each group of query heads. Where other ranks have the other queries
  /// of the same heads, each group's sum goes on over them before the tree over groups does.
  bool dkv_of_each_group = false;
  Tensor dq{};  ///< with a block: f32 [B * S, H * K]
};
void attention_backward(Stream& stream, const AttentionBackward& args);

/// Enough for both directions at every shape of at most this many sequences and positions.
std::int64_t attention_workspace_bytes(const AttentionShape& most, DType dtype,
                                       const ComputeDevice& device);

}  // namespace sherd::kernels
