/// kernels/token.h in double precision. `mask` holds dropout's factors [B * S, D].
#pragma once

#include "kernels/token.h"
#include "tests/support/oracles/oracle_values.h"

namespace sherd::oracle {

struct EmbeddingShape {
  std::int64_t sequences = 0, positions = 0, width = 0, vocab_size = 0;
  std::int64_t position_rows = 0;  ///< rows of the position table; 0: no table
};

Values embedding_forward(const EmbeddingShape& shape, const std::vector<std::int32_t>& tokens,
                         const Values& token_weight, const Values& position_weight,
                         const Values& mask);

struct EmbeddingGradients {
  Values token_weight, position_weight;
};
EmbeddingGradients embedding_backward(const EmbeddingShape& shape,
                                      const std::vector<std::int32_t>& tokens, const Values& dy,
                                      const Values& mask);

struct Loss {
  Values losses;     ///< [T]
  Values gradients;  ///< [T, V]: gradients of each token's own loss
};
Loss cross_entropy(std::int64_t vocab_size, const Values& logits,
                   const std::vector<std::int32_t>& targets);
/// c lse^2 of every token.
Loss z_loss(std::int64_t vocab_size, const Values& logits, double c);

}  // namespace sherd::oracle
