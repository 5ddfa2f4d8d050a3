/// Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2): in training, layers after the
/// model's predict further tokens, one layer for each.
///
///   n_0       = final_norm(x_L), what the model's head reads
///   e_k       = embedding(token at position + k)                            k = 1, 2, ...
///   input_k   = projection_k [embedding_norm_k(e_k); hidden_norm_k(n_{k-1})]
///   n_k       = norm_k(block_k(input_k))
///   loss_k    = cross entropy of head(n_k) with the target k positions ahead
///
/// Embedding and head are the model's. A row's last k positions have no loss_k, and no document
/// predicts another's tokens: Pass::ahead has the tokens, the targets and a weight for each k. The
/// gradient is that of the loss plus ModelShape::mtp_loss times the mean of the losses loss_k, each a
/// mean over its own targets.
///
/// Block k has number num_layers + k - 1. Calls take k - 1 as `index`.
///
/// Order    embed, begin, then for each index enter, the block's forward, leave; Head::train; then
///          for the indices backwards leave_backward, the block's backward, enter_backward;
///          Head::finish_train; embed_backward at the end
#pragma once

#include "engine/model/computation.h"

namespace sherd::model {

class Prediction : protected Part {
 public:
  using Part::Part;

  /// The embeddings of all tokens ahead.
  void embed(const EmbeddingParameters& parameters, const Pass& pass);
  /// n_0.
  void begin(const HeadParameters& parameters);
  void enter(std::int64_t index, const BlockParameters& parameters);
  void leave(std::int64_t index, const BlockParameters& parameters);

  /// From the gradient of n_k that Head::train has left, to that of the block's output.
  void leave_backward(std::int64_t index, const BlockParameters& parameters,
                      const BlockParameters& gradients);
  /// From the gradient of the block's input, to those of e_k and n_{k-1}; adds to the latter.
  void enter_backward(std::int64_t index, const BlockParameters& parameters,
                      const BlockParameters& gradients);
  /// Adds to the gradient of the token embedding.
  void embed_backward(const EmbeddingParameters& gradients, const Pass& pass);

  /// n_k, for k = index + 1; after Head::train its gradient.
  Tensor output_TD(std::int64_t index) const;

 private:
  const PredictionBuffers& buffers(std::int64_t index) const {
    return activations_.predictions[static_cast<std::size_t>(index)];
  }
  SiteTensors statistics(const SiteBuffers& norm) const;
  Tensor rows_of(const Buffer& buffer) const;
  void move(const Tensor& from, const Tensor& joined, int half, bool into);
  void norm_backward(const Affine& parameters, const Affine& gradients, const SiteBuffers& norm,
                     const Tensor& residual, const Tensor& dy, const Tensor& d_out,
                     const Tensor& d_in);
};

}  // namespace sherd::model
