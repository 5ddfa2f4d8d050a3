/// Token and position embeddings.
///
///   x_0 = dropout(scale token_weight[token] + position_weight[position])        [T, D]
#pragma once

#include "engine/model/computation.h"

namespace sherd::model {

class Embedding : protected Part {
 public:
  using Part::Part;

  /// Writes the residual stream before block 0.
  void forward(const EmbeddingParameters& parameters, const Pass& pass);
  /// From the residual stream's gradient. `add_to_tokens`: adds to `gradients.token_weight`, which
  /// holds the head's contribution or earlier micro-batches'.
  void backward(const EmbeddingParameters& gradients, const Pass& pass, bool add_to_tokens);
};

}  // namespace sherd::model
