/// A decoder-only transformer on one device, unit by unit, forward and backward written by hand.
///
/// It is written as if one device held everything: each call is given one unit's full parameters
/// (and where its gradient goes) as views and knows nothing of slices or ranks. In what order units
/// are called, and where their parameters come from, is engine/training_step.cpp's business.
///
///   x_0     = dropout(token_weight[token] + position_weight[position])
///   h_i     = x_i + dropout(attention(norm1(x_i)))
///   x_{i+1} = h_i + dropout(mlp(norm2(h_i)))                        pre-norm block
///   logits  = final_norm(x_L) head_weight^T
///
/// Head and loss run forward and backward in one call, chunk by chunk of tokens: a chunk of logits
/// is turned into its gradient in place and used up before the next one is computed.
///
/// Memory   `activations` holds every buffer; calls allocate nothing.
/// Order    embed, block_forward 0..L-1, head (evaluate or train), block_backward L-1..0,
///          embed_backward, all with the same Pass.
#pragma once

#include <span>

#include "engine/model/activations.h"
#include "engine/model/parameters.h"
#include "kernels/dropout.h"

namespace sherd::model {

/// What one pass over one micro-batch is about.
struct Pass {
  ConstTensor inputs, targets;  ///< i32 [T]
  bool training = false;        ///< dropout on
  std::uint64_t seed = 0;       ///< of dropout
  std::uint32_t step = 0;
  std::int64_t first_row = 0;   ///< of the global batch: where this micro-batch begins
  float gradient_scale = 1.0f;  ///< 1 / tokens of the whole step over all ranks
};

class Transformer {
 public:
  Transformer(const ModelShape& shape, Allocator& memory, Stream& compute);

  const ModelShape& shape() const { return shape_; }

  /// Later passes have this many sequences of this length, at most what was planned for.
  void resize(std::int64_t sequences, std::int64_t seq_length);

  void embed(const EmbeddingParameters& parameters, const Pass& pass);
  void block_forward(std::int64_t block, const BlockParameters& parameters, const Pass& pass);
  /// Losses only.
  void head_evaluate(const HeadParameters& parameters, const Pass& pass);
  /// Losses, and the gradients of the head's parameters and of the last block's output.
  void head_train(const HeadParameters& parameters, const HeadParameters& gradients,
                  const Pass& pass);
  void block_backward(std::int64_t block, const BlockParameters& parameters,
                      const BlockParameters& gradients, const Pass& pass);
  /// With tied weights `gradients.token_weight` holds the head's contribution, which is added to.
  void embed_backward(const EmbeddingParameters& gradients, const Pass& pass);

  /// The last pass's loss of every token, f32 [T], in device memory.
  const Tensor& losses() const { return activations_.losses_T.tensor(); }
  /// Logits of one token of the last pass, into the first row of the logits buffer, which is
  /// returned: [V]. For sampling; needs the head's parameters.
  Tensor token_logits(const HeadParameters& parameters, std::int64_t token);

 private:
  kernels::Dropout dropout(const Pass& pass, std::uint32_t site) const;
  kernels::Dropout attention_dropout(const Pass& pass, std::uint32_t site) const;
  void final_norm(const HeadParameters& parameters);
  void project(const Affine& affine, const Tensor& x, std::int64_t inputs, std::int64_t outputs,
               const Tensor& y);
  void project_backward(const Affine& parameters, const Affine& gradients, const Tensor& x,
                        const Tensor& dy, std::int64_t inputs, std::int64_t outputs,
                        const Tensor& dx, const Tensor& gelu_input = {});
  void fill_block(std::int64_t block, const BlockParameters& parameters, const Pass& pass);
  void normalise(const Affine& parameters, const Tensor& residual_TD, const NormTensors& norm);
  void attention_backward(std::int64_t block, const BlockParameters& parameters,
                          const BlockParameters& gradients, const Tensor& d_branch_TD,
                          const Pass& pass);
  void mlp_backward(std::int64_t block, const BlockParameters& parameters,
                    const BlockParameters& gradients, const Tensor& d_branch_TD);

  ModelShape shape_;
  std::int64_t planned_tokens_;
  Stream& compute_;
  Activations activations_;
  std::int64_t filled_block_ = -1;  ///< with full recompute: whose activations are there
};

}  // namespace sherd::model
