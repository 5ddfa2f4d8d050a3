#include "engine/generate/score.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "engine/generate/token_choice.h"

namespace sherd::engine {
namespace {

// Adds the last `num_scored` of `tokens`, each after all tokens before it.
void add_last(Decoder& decoder, std::span<const std::int32_t> tokens, std::int64_t num_scored,
              Score& score) {
  const auto num_tokens = static_cast<std::int64_t>(tokens.size());
  decoder.logits(tokens.first(tokens.size() - 1), num_tokens - 1 - num_scored,
                 [&](std::int64_t position, std::span<const float> logits) {
                   const std::int32_t token = tokens[static_cast<std::size_t>(position) + 1];
                   score.log_likelihood += log_probability(logits, token);
                   score.is_greedy = score.is_greedy && likeliest(logits) == token;
                 });
  score.num_tokens += num_scored;
}

}  // namespace

Score score_continuation(Decoder& decoder, std::span<const std::int32_t> context,
                         std::span<const std::int32_t> continuation) {
  SHERD_CHECK(!context.empty() && !continuation.empty(), "{} tokens after {}", continuation.size(),
              context.size());
  const auto most = static_cast<std::size_t>(decoder.context());
  if (continuation.size() > most) {
    throw UsageError("a continuation of {} tokens doesn't fit a context of {}; raise --context.",
                     continuation.size(), most);
  }
  std::vector<std::int32_t> tokens(context.begin(), context.end());
  tokens.insert(tokens.end(), continuation.begin(), continuation.end());
  // The last token is predicted only, so one more than the context fits.
  const std::size_t kept = std::min(tokens.size(), most + 1);
  Score score;
  add_last(decoder, std::span(tokens).last(kept), std::ssize(continuation), score);
  return score;
}

Score score_text(Decoder& decoder, std::int32_t prefix, std::span<const std::int32_t> tokens) {
  std::vector<std::int32_t> all = {prefix};
  all.insert(all.end(), tokens.begin(), tokens.end());
  const auto num_tokens = static_cast<std::int64_t>(tokens.size());
  Score score;
  for (std::int64_t done = 0; done < num_tokens;) {
    const std::int64_t count = std::min(decoder.context(), num_tokens - done);
    const std::int64_t end = done + count + 1;  // in `all`
    const std::int64_t begin = std::max<std::int64_t>(0, end - decoder.context() - 1);
    add_last(decoder,
             std::span(all).subspan(static_cast<std::size_t>(begin),
                                    static_cast<std::size_t>(end - begin)),
             count, score);
    done += count;
  }
  return score;
}

}  // namespace sherd::engine
