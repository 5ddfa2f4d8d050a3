/// Normalisation of queries and keys, in place in a packed qkv tensor, before rotation.
///
///   heads        every query head and key head of a token is a row of width K; all query heads
///                share weights, and all key heads share weights
///   per head     the same rows; each head has its own weights
///   projections  a token's query heads are one row of width H K, its key heads one of G K
///
///   y = (r - mean) * rstd * (weight_offset + weight)        mean and rstd as in kernels/norm.h
///
///   backward, with xhat = (r - mean) * rstd and g = dy (weight_offset + weight)
///   dr = rstd (g - mean(g) - xhat mean(g xhat))             rmsnorm: without mean(g)
///
/// Values aren't changed. The backward reads the original rows, which the forward keeps in `raw`.
///
/// Sources   heads: Henry et al. 2020, Dehghani et al. 2023; per head: StableLM 2 12B, Command R+;
///           projections: OLMo 2 (arXiv:2501.00656).
/// Shapes    qkv and dqkv [T, (H + 2 G) K] packed as for kernels/attention.h; raw [T, (H + G) K];
///           query_weight [K] (heads) or [H K], key_weight [K] or [G K]; mean (layernorm), rstd [T,
///           rows] with `rows` rows per token: 2 for projections, H + G otherwise (f32).
/// Types     qkv, raw and weights of one type (f32, bf16, f16); weight gradients may have another;
///           sums in f32.
/// Bits      a row's result depends only on the row; weight gradients are sums over fixed blocks of
///           tokens. With token groups they are f32 trees over these groups, and each term is a
///           tree over the groups of heads that share the weights.
/// Workspace `qk_norm_backward_workspace_bytes`.
/// Cut       If ranks divide a projection's heads (all_query_heads > 0), each has a part of a row.
///           Forward and backward then receive the sums over whole rows: an earlier call writes the
///           sums of each rank's part, which are added over ranks.
///               rmsnorm     qk_norm_sums (squares), sum over ranks, qk_norm_forward
///               layernorm   qk_norm_sums (r), sum over ranks, qk_norm_sums (squared differences
///                           from the mean), sum over ranks, qk_norm_forward
///               backward    qk_norm_backward_sums, sum over ranks, qk_norm_backward
/// Device    a GPU takes one group.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/norm.h"

namespace sherd::kernels {

enum class QkRows { kHeads, kPerHead, kProjections };

struct QkNormShape {
  NormKind kind = NormKind::kRmsNorm;
  QkRows rows = QkRows::kHeads;
  std::int64_t tokens = 0;                                     ///< T
  std::int64_t query_heads = 0, kv_heads = 0, head_width = 0;  ///< H, G, K
  float eps = 1e-5f;
  float weight_offset = 0.0f;
  bool weightless = false;  ///< y = (r - mean) * rstd
  /// If these are only some of a model's heads, and rows are projections: the number of all heads.
  /// 0: these are all.
  std::int64_t all_query_heads = 0, all_kv_heads = 0;
  /// With more than one, sums over heads (gradients of shared weights, sums of parts of
  /// projections) are balanced trees over this many groups of these heads, bit-identical on any
  /// number of ranks.
  int groups = 1;
  TokenGroups token_groups{};  ///< for the weights' gradients

  bool is_cut() const { return all_query_heads > 0; }
  std::int64_t heads() const { return query_heads + kv_heads; }
  std::int64_t packed_width() const { return (heads() + kv_heads) * head_width; }
  std::int64_t raw_width() const { return heads() * head_width; }
  std::int64_t rows_per_token() const { return rows == QkRows::kProjections ? 2 : heads(); }
  std::int64_t query_weights() const {
    return rows == QkRows::kHeads ? head_width : query_heads * head_width;
  }
  std::int64_t key_weights() const {
    return rows == QkRows::kHeads ? head_width : kv_heads * head_width;
  }
  std::int64_t row_width(bool of_queries) const {
    if (rows != QkRows::kProjections) return head_width;
    return head_width * (of_queries ? query_heads : kv_heads);
  }
};

/// sums[0][t]: over this rank's part of token t's queries; sums[1][t]: over its keys.
struct QkNormSums {
  QkNormShape shape;
  ConstTensor qkv;
  ConstTensor row_sums{};  ///< layernorm, second call: the first call's sums over ranks
  Tensor sums;             ///< [2, T] f32
};
void qk_norm_sums(Stream& stream, const QkNormSums& args);

struct QkNormForward {
  QkNormShape shape;
  Tensor qkv;
  ConstTensor query_weight, key_weight;
  Tensor raw, mean, rstd;  ///< mean may be empty for rmsnorm
  /// If rows are cut, [2, T] f32: sums over whole rows (layernorm), and sums of squares.
  ConstTensor row_sums{}, row_squares{};
};
void qk_norm_forward(Stream& stream, const QkNormForward& args);

struct QkNormBackward {
  QkNormShape shape;
  ConstTensor raw, mean, rstd, query_weight, key_weight;
  Tensor dqkv;  ///< in: gradients of the forward's output; out: of its input
  Tensor d_query_weight, d_key_weight;
  Tensor workspace;
  Tensor row_sums{};  ///< if rows are cut, [4, T] f32: of g and g xhat; queries, then keys
  /// With token groups: d_query_weight and d_key_weight are [groups, weights], one row per group.
  /// If other ranks have heads of the same tokens, each group is first summed over these ranks,
  /// then over groups.
  bool of_each_group = false;
};
/// Writes only this rank's part of row_sums.
void qk_norm_backward_sums(Stream& stream, const QkNormBackward& args);
void qk_norm_backward(Stream& stream, const QkNormBackward& args);
/// Enough at every shape with at most this many tokens.
std::int64_t qk_norm_backward_workspace_bytes(const QkNormShape& most, const ComputeDevice& device);

}  // namespace sherd::kernels
