/// How tokens are drawn, from what users of the library ask.
#pragma once

#include "core/error.h"
#include "engine/generate/token_choice.h"

namespace sherd::library {

/// `Options`: the user's GenerationOptions or SampleOptions. The ranges are those of `sherd sample`.
/// Errors   UsageError
template <class Options>
engine::SamplingOptions sampling_of(const Options& options) {
  constexpr std::int64_t kMost = 1 << 30;
  if (options.num_tokens < 1 || options.num_tokens > kMost) {
    throw UsageError("num_tokens is {}; expected 1 to {}.", options.num_tokens, kMost);
  }
  if (!(options.temperature >= 0.0 && options.temperature <= 100.0)) {
    throw UsageError("temperature is {}; expected 0 to 100.", options.temperature);
  }
  if (options.top_k < 0 || options.top_k > kMost) {
    throw UsageError("top_k is {}; expected 0 (all tokens) to {}.", options.top_k, kMost);
  }
  if (!(options.top_p >= 0.0 && options.top_p <= 1.0)) {
    throw UsageError("top_p is {}; expected 0 to 1.", options.top_p);
  }
  return {.num_tokens = options.num_tokens,
          .temperature = options.temperature,
          .top_k = options.top_k,
          .top_p = options.top_p,
          .seed = options.seed};
}

}  // namespace sherd::library
