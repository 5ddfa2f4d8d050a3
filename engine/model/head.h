/// Final norm, head and loss.
///
///   logits = final_norm(x_L) head_weight^T, scaled and capped     [T, V], chunk by chunk of tokens
///
/// Head and loss run forward and backward in one call: a chunk of logits is overwritten with its
/// gradient, which is consumed before the next chunk is computed.
#pragma once

#include "engine/model/computation.h"

namespace sherd::model {

class Head : protected Part {
 public:
  using Part::Part;

  /// Losses only.
  void evaluate(const HeadParameters& parameters, const Pass& pass);
  /// Losses, and the gradients of the head's parameters and of the last block's output.
  /// With multi-token prediction, also the losses of its outputs, in whose place their gradients
  /// are afterwards; the last gradient is then `finish_train`'s.
  void train(const HeadParameters& parameters, const HeadParameters& gradients, const Pass& pass);
  void finish_train(const HeadParameters& parameters, const HeadParameters& gradients);
  /// Logits of the last pass's tokens [first, first + count), in the logits buffer: [count, V],
  /// where V is this rank's part of the vocabulary.
  Tensor logits(const HeadParameters& parameters, std::int64_t first, std::int64_t count);

 private:
  /// The head's input, for all tokens.
  Tensor final_norm(const HeadParameters& parameters);
  Tensor further_losses(std::int64_t index) const;
};

}  // namespace sherd::model
