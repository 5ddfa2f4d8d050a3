#include "sherd/generation.h"

#include "engine/inference/generation.h"
#include "engine/library/errors.h"
#include "engine/library/sampling.h"
#include "engine/saving/checkpoint_path.h"

namespace sherd::v0 {
namespace {

std::vector<GeneratedText> generated(const std::string& model,
                                     const std::vector<std::string>& prompts,
                                     const GenerationOptions& options, const OnText& on_text) {
  if (options.ranks < 1) {
    throw sherd::UsageError("generate: ranks is {}; expected at least 1.", options.ranks);
  }
  std::vector<GeneratedText> texts(prompts.size());
  if (prompts.empty()) return texts;
  const engine::ChosenCheckpoint chosen = engine::choose_checkpoint(model);
  engine::GenerationRequest request{.model = {.checkpoint = chosen.path,
                                              .sets = options.sets,
                                              .ranks = options.ranks,
                                              .average = options.average,
                                              .handles_signals = false},
                                    .options = {.sampling = library::sampling_of(options),
                                                .stops = options.stops,
                                                .ignores_end_tokens = options.ignore_end_tokens,
                                                .for_terminal = false,
                                                .wants_more = options.wants_more},
                                    .prompts = prompts};
  request.on_text = on_text;
  request.on_end = [&texts](std::size_t prompt, const engine::GeneratedText& result) {
    texts[prompt] = {result.text, result.num_tokens, std::string(engine::name_of(result.end))};
  };
  engine::generate(request);
  return texts;
}

}  // namespace

GeneratedText generate(const std::string& model, const std::string& prompt,
                       const GenerationOptions& options, const OnText& on_text) {
  return library::for_user(
      [&] { return std::move(generated(model, {prompt}, options, on_text)[0]); });
}

std::vector<GeneratedText> generate(const std::string& model,
                                    const std::vector<std::string>& prompts,
                                    const GenerationOptions& options) {
  return library::for_user([&] { return generated(model, prompts, options, {}); });
}

}  // namespace sherd::v0
