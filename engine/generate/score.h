/// How likely a model thinks a text is.
#pragma once

#include <cstdint>
#include <span>

#include "engine/generate/decoder.h"

namespace sherd::engine {

struct Score {
  double log_likelihood = 0.0;  ///< sum of ln p over `num_tokens` tokens, in f64
  std::int64_t num_tokens = 0;
  bool is_greedy = true;  ///< each token was the likeliest
};

/// Scores `continuation` after `context` (both at least one token). If they are longer than the
/// decoder's context, the beginning is dropped, as lm-evaluation-harness does.
/// Errors   UsageError if the continuation alone doesn't fit.
Score score_continuation(Decoder& decoder, std::span<const std::int32_t> context,
                         std::span<const std::int32_t> continuation);

/// Scores a whole text, each token once, after as many tokens as fit. The first window begins with
/// `prefix`, later ones follow one another, and the last one is moved back until it is full.
Score score_text(Decoder& decoder, std::int32_t prefix, std::span<const std::int32_t> tokens);

}  // namespace sherd::engine
