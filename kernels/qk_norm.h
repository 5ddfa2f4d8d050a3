/// Normalisation of queries and keys, in place in a packed qkv tensor, before they are turned.
///
///   per head     every query head and key head of a token is a row of width K
///   projection   a token's query heads are one row of width H K, its key heads one of G K
///
///   y = (r - mean) * rstd * (weight_offset + weight)        mean and rstd as in kernels/norm.h
///
/// Values aren't touched. The backward reads the rows as they were, which the forward keeps in `raw`.
///
/// Sources   per head: Henry et al. 2020, Dehghani et al. 2023; projection: OLMo 2 (arXiv:2501.00656).
/// Shapes    qkv and dqkv [T, (H + 2 G) K] packed as for kernels/attention.h; raw [T, (H + G) K];
///           query_weight [K] or [H K], key_weight [K] or [G K]; mean (layernorm), rstd [T, rows] with
///           `rows` rows of a token: H + G per head, 2 otherwise (f32).
/// Types     qkv, raw and weights of one type (f32, bf16, f16); weight gradients of their own; sums in
///           f32.
/// Bits      a row's follow from the row alone; weight gradients are sums over fixed blocks of tokens.
/// Workspace `qk_norm_backward_workspace_bytes`.
/// Device    CPU; the recipe refuses it on a GPU.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/norm.h"

namespace sherd::kernels {

enum class QkRows { kHeads, kProjections };

struct QkNormShape {
  NormKind kind = NormKind::kRmsNorm;
  QkRows rows = QkRows::kHeads;
  std::int64_t tokens = 0;                                     ///< T
  std::int64_t query_heads = 0, kv_heads = 0, head_width = 0;  ///< H, G, K
  float eps = 1e-5f;
  float weight_offset = 0.0f;

  std::int64_t heads() const { return query_heads + kv_heads; }
  std::int64_t packed_width() const { return (heads() + kv_heads) * head_width; }
  std::int64_t raw_width() const { return heads() * head_width; }
  std::int64_t rows_per_token() const { return rows == QkRows::kHeads ? heads() : 2; }
  std::int64_t query_weights() const {
    return rows == QkRows::kHeads ? head_width : query_heads * head_width;
  }
  std::int64_t key_weights() const {
    return rows == QkRows::kHeads ? head_width : kv_heads * head_width;
  }
};

struct QkNormForward {
  QkNormShape shape;
  Tensor qkv;
  ConstTensor query_weight, key_weight;
  Tensor raw, mean, rstd;  ///< mean may be empty for rmsnorm
};
void qk_norm_forward(Stream& stream, const QkNormForward& args);

struct QkNormBackward {
  QkNormShape shape;
  ConstTensor raw, mean, rstd, query_weight, key_weight;
  Tensor dqkv;  ///< in: gradients of what the forward left; out: of the rows as they were
  Tensor d_query_weight, d_key_weight;
  Tensor workspace;
};
void qk_norm_backward(Stream& stream, const QkNormBackward& args);
/// Enough at every shape of at most this many tokens.
std::int64_t qk_norm_backward_workspace_bytes(const QkNormShape& most);

}  // namespace sherd::kernels
