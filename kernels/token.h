/// The embedding and the cross-entropy loss: conversions between tokens and vectors.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/device.h"
#include "kernels/documents.h"
#include "kernels/dropout.h"
#include "kernels/teacher.h"
#include "kernels/token_groups.h"

namespace sherd::kernels {

/// Vocabulary ids of a matrix's rows, if ranks divide the vocabulary: row i has id first + i. The
/// rows of other ids below `all` are on other ranks. all 0: the rows are the whole vocabulary.
struct VocabularyRows {
  std::int64_t first = 0, all = 0;

  /// Whether `id` is in the vocabulary, if the matrix has `num_rows` rows.
  SHERD_HOST_DEVICE bool knows(std::int32_t id, std::int64_t num_rows) const {
    return id >= 0 && id < (all > 0 ? all : num_rows);
  }
  /// The row of `id` in this matrix; -1: it is on another rank.
  SHERD_HOST_DEVICE std::int64_t row_of(std::int32_t id, std::int64_t num_rows) const {
    const std::int64_t row = id - first;
    return row >= 0 && row < num_rows ? row : -1;
  }
};

/// y[t,:] = dropout(scale * token_weight[token[t],:] + position_weight[p,:]), p = t mod S, or t's
/// position in its document.
///
/// Shapes   tokens [B * S] i32, 0 <= token < V; token_weight [V, D]; position_weight [>= S, D] or
///          empty; y [B * S, D]. Element (t, d) of the dropout is first_element + t * D + d.
/// Types    weights and y of one type (f32, bf16, f16); the sum is formed in f32.
/// Cut      y[t,:] is zero if the row of token[t] is on another rank. Summed over the ranks that
///          together have all rows, y is bit-identical to a single rank's.
struct EmbeddingForward {
  std::int64_t sequences = 0, positions = 0, width = 0, vocab_size = 0;  ///< B, S, D, V
  ConstTensor tokens, token_weight, position_weight;
  Dropout dropout;
  Tensor y;
  float scale = 1.0f;  ///< of token_weight
  Documents documents{};
  VocabularyRows rows{};     ///< of token_weight
  bool interleaved = false;  ///< token_weight's rows are interleaved: kernels/interleaved.h
};
void embedding_forward(Stream& stream, const EmbeddingForward& args);

/// d_token_weight[v,:] = sum over t with token[t] = v, in the order of t, of dropout mask *
/// dy[t,:], times scale; d_position_weight[s,:] = sum over sequences (documents), in order. Sums in
/// f32, rounded once. Rows without a token and position rows >= S are set to zero; where the result
/// is added, they are unchanged.
///
/// With token groups, f32: d_token_weight[v,:] is a tree over them, each sum times scale.
/// d_position_weight is computed as without groups, since each position is in one group.
/// Overwrites, never adds.
///
/// `add_to_token_gradient`: d_token_weight already holds the head's contribution (tied weights);
/// one addition per element after the sum. Tokens whose row is on another rank are skipped.
struct EmbeddingBackward {
  std::int64_t sequences = 0, positions = 0, width = 0, vocab_size = 0;
  std::int64_t position_rows = 0;  ///< rows of d_position_weight, >= S
  ConstTensor tokens, dy;
  Dropout dropout;
  Tensor d_token_weight, d_position_weight;  ///< the second may be empty; any float type
  bool add_to_token_gradient = false;
  Tensor workspace;  ///< embedding_backward_workspace_bytes
  float scale = 1.0f;
  Documents documents{};
  VocabularyRows rows{};  ///< of d_token_weight
  /// Number of positions in whole rows and their documents. The tokens are at [first_position,
  /// first_position + positions). With a second_position above 0, half of them are there and half
  /// start at second_position. Without documents, d_position_weight then has a row for every
  /// position of a whole row. 0: the tokens have all positions.
  std::int64_t row_positions = 0, first_position = 0, second_position = 0;
  TokenGroups groups{};  ///< unsupported on a GPU

  /// Maps an index into whole rows to an index into these tokens; -1: it is on another rank.
  std::int64_t own_token(std::int64_t token) const {
    if (row_positions == 0) return token;
    const std::int64_t position = token % row_positions, row = token / row_positions * positions;
    const std::int64_t first = second_position > 0 ? positions / 2 : positions;
    const auto in = [&](std::int64_t begin, std::int64_t count) {
      return position >= begin && position < begin + count;
    };
    if (in(first_position, first)) return row + position - first_position;
    if (in(second_position, positions - first)) return row + first + position - second_position;
    return -1;
  }
};
void embedding_backward(Stream& stream, const EmbeddingBackward& args);
std::int64_t embedding_backward_workspace_bytes(std::int64_t tokens, std::int64_t vocab_size,
                                                const ComputeDevice& device);

/// z = scale * logits, and with a soft cap softcap * tanh(z / softcap) (Gemma 2, arXiv:2408.00118).
/// loss[t] = log sum_v exp(z[t,v]) - z[t, target[t]]; and, if `gradient`, logits are overwritten
/// with their gradient: grad_scale * (softmax(z) - onehot(target)) times dz/dlogits. If the target
/// is kNoTarget, the loss and the gradients of its row are zero.
///
/// Shapes   logits [T, V]; targets [T] i32; losses [T] f32. Types: logits f32, bf16 or f16; all
///          sums in f32 with the row's maximum subtracted.
/// With a z-loss of coefficient c (PaLM, arXiv:2204.02311, section 5; training.z_loss_multiplier),
/// where lse[t] = log sum_v exp(z[t,v]), the gradient is that of loss[t] + c lse[t]^2: softmax(z) has
/// the factor 1 + 2 c lse[t]. `losses` stays without it.
///
/// With `weights`, the gradient of token t has the factor weights[t]: that of a loss whose
/// derivative with respect to loss[t] it is. `losses` stay without it. A GPU takes weights or a
/// z-loss.
///
/// With a teacher (kernels/teacher.h), the gradient has a part of its divergence. `losses` stay
/// without it. Only with `gradient`, and without weights and z-loss.
///
/// The scale and soft cap are applied between the head's matmul and the softmax.
struct LogitsForm {
  float scale = 1.0f;
  float softcap = 0.0f;  ///< 0: none

  bool is_neutral() const { return scale == 1.0f && softcap == 0.0f; }
};
inline constexpr std::int32_t kNoTarget = -1;
struct ZLoss {
  float coefficient = 0.0f;  ///< c; 0: none
  Tensor losses{};           ///< f32 [T]: c lse[t]^2, or 0 without a target; empty if c is 0

  explicit operator bool() const { return coefficient != 0.0f; }
};
/// c lse^2, and the factor of the softmax in the gradient.
SHERD_HOST_DEVICE inline float z_loss_of(float coefficient, float lse) {
  return coefficient * lse * lse;
}
SHERD_HOST_DEVICE inline float z_loss_factor(float coefficient, float lse) {
  return 1.0f + 2.0f * coefficient * lse;
}
struct CrossEntropy {
  std::int64_t tokens = 0, vocab_size = 0;
  Tensor logits;
  ConstTensor targets;
  Tensor losses;
  bool gradient = true;
  float grad_scale = 1.0f;
  LogitsForm form{};
  ZLoss z_loss{};
  ConstTensor weights{};  ///< f32 [T]; empty: all 1
  Teacher teacher{};
};
void cross_entropy(Stream& stream, const CrossEntropy& args);

/// logits[i] = z above, in place.
void shape_logits(Stream& stream, const LogitsForm& form, Tensor logits);

}  // namespace sherd::kernels
