#include "engine/inference/generation.h"

#include <algorithm>
#include <chrono>

#include "engine/generate/sample.h"
#include "engine/generate/text_stream.h"
#include "engine/inference/in_order.h"
#include "engine/inference/text_model.h"
#include "engine/launch/stop_signals.h"

namespace sherd::engine {

std::string_view name_of(GeneratedText::End end) {
  switch (end) {
    case GeneratedText::End::kStop:
      return "stop";
    case GeneratedText::End::kEndToken:
      return "end";
    case GeneratedText::End::kLength:
      break;
  }
  return "length";
}

GeneratedText generate_text(const TextModel& model, Decoder& decoder,
                            const std::vector<std::int32_t>& prompt,
                            const GenerationOptions& options,
                            const std::function<void(std::string_view)>& on_text) {
  // Stops are looked for in the text itself: escapes have letters of their own.
  const bool escapes = options.for_terminal && !options.stops.empty();
  const TextOf text_of = [&](std::span<const std::int32_t> ids) {
    return options.for_terminal && !escapes ? model.text().text(ids) : model.text().exact_text(ids);
  };
  const auto shown = [&](const std::string& text) {
    return escapes ? data::terminal_text(text) : text;
  };
  TextStream stream(text_of, prompt, options.stops);
  GeneratedText result{.prompt_tokens = std::ssize(prompt)};
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  auto first = begin;
  const auto show = [&](bool is_end) {
    if (!on_text) return;
    if (const std::string piece = stream.take(is_end); !piece.empty()) on_text(shown(piece));
  };
  const OnToken on_token = [&](std::int32_t token) {
    if (++result.num_tokens == 1) first = Clock::now();
    const bool is_end = model.is_end(token) ||
                        std::ranges::find(options.end_tokens, token) != options.end_tokens.end();
    if (!options.ignores_end_tokens && is_end) {
      result.end = GeneratedText::End::kEndToken;
      return false;
    }
    if (!stream.add(token)) result.end = GeneratedText::End::kStop;
    show(false);
    return !stream.stopped() && (!options.wants_more || options.wants_more());
  };
  sample(decoder, prompt, options.sampling, on_token,
         [] { end_if_asked("during sampling; what was trained is on disk"); });
  result.first_seconds = std::chrono::duration<double>(first - begin).count();
  result.other_seconds = std::chrono::duration<double>(Clock::now() - first).count();
  show(true);
  result.text = shown(stream.text());
  return result;
}

void generate(const GenerationRequest& request) {
  SHERD_CHECK(!request.prompts.empty() && request.options.sampling.num_tokens >= 1,
              "nothing to generate");
  TextModel model(request.model);
  std::vector<std::vector<std::int32_t>> prompts;
  std::size_t longest = 0;
  for (const std::string& prompt : request.prompts) {
    prompts.push_back(model.prompt_ids(prompt));
    longest = std::max(longest, prompts.back().size());
  }
  InOrder<GeneratedText> results(request.on_end);
  const auto use = [&](const sharding::Rank& rank, Decoder& decoder) {
    const bool together = model.ranks_work_together();
    const auto own = static_cast<std::size_t>(rank.rank);
    for (std::size_t p = 0; p < prompts.size(); ++p) {
      if (!together && p % static_cast<std::size_t>(rank.world_size()) != own) continue;
      const bool tells = !together || own == 0;
      GeneratedText text = generate_text(model, decoder, prompts[p], request.options,
                                         tells && prompts.size() == 1 ? request.on_text : nullptr);
      if (tells) results.add(p, std::move(text));
    }
  };
  model.run(static_cast<std::int64_t>(longest) + request.options.sampling.num_tokens, use,
            request.on_note);
}

}  // namespace sherd::engine
