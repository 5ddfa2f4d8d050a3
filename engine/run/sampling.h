/// Text from the model as it is: token after token, each drawn from the model's distribution.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/train/sharded_model.h"

namespace sherd::engine {

struct SamplingOptions {
  std::int64_t num_tokens = 0;  ///< to add to the prompt
  double temperature = 1.0;     ///< 0: always the most likely token
  std::int64_t top_k = 0;       ///< 0: all tokens
  std::uint64_t seed = 0;
};

/// Extends `prompt` (at least one token). A collective: all ranks draw the same numbers from the
/// same logits, so all get the same text. The context is the last seq_length tokens; every token
/// costs one forward pass over it.
/// Errors   Interrupted or Requeue if a signal asks to stop (stop_request.h).
std::vector<std::int32_t> sample(ShardedModel& model, const std::vector<std::int32_t>& prompt,
                                 const SamplingOptions& options,
                                 const sharding::MirroredBuffer& inputs);

/// The token at `u` in [0, 1) of softmax(logits / temperature) over the `top_k` largest.
std::int32_t choose_token(const std::vector<float>& logits, const SamplingOptions& options,
                          double u);

}  // namespace sherd::engine
