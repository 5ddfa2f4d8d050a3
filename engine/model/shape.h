/// The sizes of a decoder-only transformer, and which of its variants it is.
///
/// Legend for all of engine/model: B sequences of S positions make T = B * S tokens; D hidden
/// width, H query heads and G key/value heads of width K, F feed-forward width, V vocabulary, L
/// blocks.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/norm.h"

namespace sherd::model {

enum class Positions { kLearned, kRope };

/// What the backward computes again instead of keeping it (Korthikanti et al., arXiv:2205.05198).
///   none       nothing
///   selective  the outputs of norms and activations, cheap to compute and half of what is kept
///   full       everything but the blocks' inputs: one more forward of each block
/// The recomputed values have the same bits, dropout included, so the gradients have too. On a GPU
/// `none` and `full` take GELU of the up projection's sum before it is rounded, `selective` of what
/// is kept, rounded: there it agrees with the others to that rounding.
enum class Recompute { kNone, kSelective, kFull };

struct ModelShape {
  std::int64_t num_layers = 0;     ///< L
  std::int64_t width = 0;          ///< D
  std::int64_t query_heads = 0;    ///< H
  std::int64_t kv_heads = 0;       ///< G
  std::int64_t ffn_width = 0;      ///< F
  std::int64_t vocab_size = 0;     ///< V
  std::int64_t max_positions = 0;  ///< rows of the learned position embedding
  kernels::NormKind norm = kernels::NormKind::kLayerNorm;
  Positions positions = Positions::kLearned;
  kernels::ActivationKind activation = kernels::ActivationKind::kGelu;
  bool bias = false;
  bool tied = false;  ///< the head uses the token embedding's matrix
  double dropout = 0.0;
  double rope_theta = 10000.0;
  double norm_eps = 1e-5;
  double init_std = 0.02;

  std::int64_t sequences = 1;   ///< B, of one micro-batch
  std::int64_t seq_length = 1;  ///< S
  DType dtype = DType::kF32;    ///< of parameters in compute, and activations
  Recompute recompute = Recompute::kNone;

  std::int64_t tokens() const { return sequences * seq_length; }
  std::int64_t head_width() const { return width / query_heads; }
  std::int64_t qkv_width() const { return (query_heads + 2 * kv_heads) * head_width(); }
  bool gated() const { return activation == kernels::ActivationKind::kSwiGlu; }
  /// The up projection's product takes GELU along; what `selective` computes again must have been
  /// computed by the same kernel in the forward.
  bool activated_in_product() const { return !gated() && recompute != Recompute::kSelective; }
  std::int64_t up_width() const { return gated() ? 2 * ffn_width : ffn_width; }
  bool norm_bias() const { return bias && norm == kernels::NormKind::kLayerNorm; }

  kernels::AttentionShape attention() const {
    return {sequences, seq_length, query_heads, kv_heads, head_width()};
  }
  kernels::NormShape norm_shape() const {
    return {norm, tokens(), width, static_cast<float>(norm_eps)};
  }
  kernels::ActivationShape activation_shape() const { return {activation, tokens(), ffn_width}; }
};

}  // namespace sherd::model
