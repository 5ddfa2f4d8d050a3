#include "tests/support/oracles/oracle_token.h"

#include <algorithm>
#include <cmath>

// T = B * S tokens, D width, V vocabulary.
namespace sherd::oracle {

Values embedding_forward(const EmbeddingShape& shape, const std::vector<std::int32_t>& tokens,
                         const Values& token_weight, const Values& position_weight,
                         const Values& mask) {
  const auto D = static_cast<std::size_t>(shape.width);
  const auto S = static_cast<std::size_t>(shape.positions);
  Values y(tokens.size() * D);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    for (std::size_t d = 0; d < D; ++d) {
      double sum = token_weight[static_cast<std::size_t>(tokens[t]) * D + d];
      if (!position_weight.empty()) sum += position_weight[t % S * D + d];
      y[t * D + d] = mask[t * D + d] * sum;
    }
  }
  return y;
}

EmbeddingGradients embedding_backward(const EmbeddingShape& shape,
                                      const std::vector<std::int32_t>& tokens, const Values& dy,
                                      const Values& mask) {
  const auto D = static_cast<std::size_t>(shape.width);
  const auto S = static_cast<std::size_t>(shape.positions);
  EmbeddingGradients out{Values(static_cast<std::size_t>(shape.vocab_size) * D, 0.0),
                         Values(static_cast<std::size_t>(shape.position_rows) * D, 0.0)};
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    for (std::size_t d = 0; d < D; ++d) {
      const double gradient = mask[t * D + d] * dy[t * D + d];
      out.token_weight[static_cast<std::size_t>(tokens[t]) * D + d] += gradient;
      if (shape.position_rows > 0) out.position_weight[t % S * D + d] += gradient;
    }
  }
  return out;
}

Loss cross_entropy(std::int64_t vocab_size, const Values& logits,
                   const std::vector<std::int32_t>& targets) {
  const auto V = static_cast<std::size_t>(vocab_size);
  Loss out{Values(targets.size()), Values(logits.size())};
  for (std::size_t t = 0; t < targets.size(); ++t) {
    const double* row = &logits[t * V];
    const double largest = *std::max_element(row, row + V);
    double sum = 0.0;
    for (std::size_t v = 0; v < V; ++v) sum += std::exp(row[v] - largest);
    const double lse = largest + std::log(sum);
    out.losses[t] = lse - row[targets[t]];
    for (std::size_t v = 0; v < V; ++v) {
      const double onehot = v == static_cast<std::size_t>(targets[t]) ? 1.0 : 0.0;
      out.gradients[t * V + v] = std::exp(row[v] - lse) - onehot;
    }
  }
  return out;
}

Loss z_loss(std::int64_t vocab_size, const Values& logits, double c) {
  const auto V = static_cast<std::size_t>(vocab_size);
  Loss out{{}, Values(logits.size())};
  for (std::size_t first = 0; first < logits.size(); first += V) {
    const double* row = &logits[first];
    const double largest = *std::max_element(row, row + V);
    double sum = 0.0;
    for (std::size_t v = 0; v < V; ++v) sum += std::exp(row[v] - largest);
    const double lse = largest + std::log(sum);
    out.losses.push_back(c * lse * lse);
    for (std::size_t v = 0; v < V; ++v) {
      out.gradients[first + v] = 2.0 * c * lse * std::exp(row[v] - lse);
    }
  }
  return out;
}

}  // namespace sherd::oracle
