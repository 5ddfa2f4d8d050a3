/// Samples text from the model, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/generate/decoder.h"
#include "engine/generate/token_choice.h"

namespace sherd::engine {

/// Receives every token; returning false ends the text with it.
using OnToken = std::function<bool(std::int32_t token)>;

/// Extends `prompt` (at least one token), at most by `options.num_tokens`. The context is the last
/// tokens that the decoder has room for. Once a text is longer, every token costs a pass over all
/// of them, since each has moved. If parameters are sharded, this is a collective: all ranks draw
/// the same numbers from the same logits, so all get the same text. `before_token` is called before
/// each token is drawn, and may throw to end the text.
std::vector<std::int32_t> sample(Decoder& decoder, std::vector<std::int32_t> prompt,
                                 const SamplingOptions& options, const OnToken& on_token = {},
                                 const std::function<void()>& before_token = {});

}  // namespace sherd::engine
