#include "engine/generate/sample.h"

#include <algorithm>
#include <span>

namespace sherd::engine {

std::vector<std::int32_t> sample(Decoder& decoder, std::vector<std::int32_t> tokens,
                                 const SamplingOptions& options, const OnToken& on_token,
                                 const std::function<void()>& before_token) {
  SHERD_CHECK(!tokens.empty(), "a prompt without tokens");
  for (std::int64_t draw = 0; draw < options.num_tokens; ++draw) {
    if (before_token) before_token();
    const auto length = std::min(static_cast<std::size_t>(decoder.context()), tokens.size());
    const std::vector<float> logits = decoder.last_logits(std::span(tokens).last(length));
    tokens.push_back(choose_token(logits, options, uniform_draw(options.seed, draw)));
    if (on_token && !on_token(tokens.back())) break;
  }
  return tokens;
}

}  // namespace sherd::engine
