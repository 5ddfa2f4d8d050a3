/// One forward, or forward and backward, of one micro-batch.
#pragma once

#include <vector>

#include "core/tensor.h"
#include "kernels/documents.h"

namespace sherd::model {

/// Of a layer of multi-token prediction: the token at each position's depth ahead, and its own
/// target, i32 [T].
struct TokensAhead {
  ConstTensor inputs, targets;
  /// Loss scale times the coefficient of these losses / number of their targets in the whole step.
  float gradient_scale = 0.0f;
};

/// The inputs of one pass over one micro-batch.
struct Pass {
  ConstTensor inputs, targets;     ///< i32 [T]
  kernels::Documents documents{};  ///< empty: each row is one
  bool training = false;           ///< dropout on
  std::uint64_t seed = 0;          ///< for dropout
  std::uint32_t step = 0;
  std::int64_t first_row = 0;       ///< where this micro-batch begins in the global batch
  std::int64_t first_position = 0;  ///< with a cache: positions it already holds
  /// Loss scale / number of tokens with a target in the whole step, over all ranks.
  float gradient_scale = 1.0f;
  /// f32 [T]: a factor of each token's gradient, of losses of whole answers (engine/preference).
  /// Empty: all 1.
  ConstTensor token_weights{};
  /// i32 and f32 [T, K]: the teacher's tokens (kernels/teacher.h), with ModelShape::teacher in
  /// training.
  ConstTensor teacher_ids{}, teacher_probabilities{};
  /// Loss scale / micro-batches of the whole step, over all ranks: the weight of this one's balance
  /// losses. Their mean over micro-batches is added to the loss. A sequence's is divided by the
  /// sequences of a micro-batch.
  float balance_scale = 0.0f;
  /// f64 [L, E + 2], added to (kernels/router.h, RouterTotals): where a training step counts what
  /// routers decide. Empty: nobody counts.
  Tensor expert_totals{};
  /// i32 [L, all H], where a training step finds each head's largest attention score
  /// (kernels/attention.h, `maxima`). Empty: nobody asks.
  Tensor attention_maxima{};
  /// i32 [L, E + 1], for losses that count the previous step's choices (kernels/router.h). Empty:
  /// routers count those of the micro-batch.
  ConstTensor previous_counts{};
  /// In training, for each of ModelShape::mtp_layers.
  std::vector<TokensAhead> ahead{};
  /// Where losses are written instead of Activations::losses_T.
  Tensor losses{};
};

}  // namespace sherd::model
