/// Choosing one token from a model's distribution.
#pragma once

#include <cstdint>
#include <span>

namespace sherd::engine {

struct SamplingOptions {
  std::int64_t num_tokens = 0;  ///< to add to the prompt, at most
  double temperature = 1.0;     ///< 0: always the likeliest token
  std::int64_t top_k = 0;       ///< draw among the k likeliest; 0: all tokens
  double top_p = 1.0;  ///< draw among the likeliest whose probabilities reach p; 1: all tokens
  std::uint64_t seed = 0;
};

/// The token at `u` in [0, 1) of softmax(logits / temperature), over what top_k and then top_p
/// leave (at least one token). Equal logits are ordered by id, so the choice is a pure function of
/// its arguments. A NaN is never chosen unless all logits are NaN.
std::int32_t choose_token(std::span<const float> logits, const SamplingOptions& options, double u);

/// Random number `draw` in [0, 1) of a seed.
double uniform_draw(std::uint64_t seed, std::int64_t draw);

/// log softmax(logits)[token], in f64.
double log_probability(std::span<const float> logits, std::int32_t token);

/// The likeliest token; the first of equal ones.
std::int32_t likeliest(std::span<const float> logits);

}  // namespace sherd::engine
