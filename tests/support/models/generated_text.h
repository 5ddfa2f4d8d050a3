// Generates text with a trained model, in one call.
#pragma once

#include <string>

#include "engine/inference/generation.h"

namespace sherd::test {

/// The prompt and the generated text.
inline std::string generated_text(const engine::TrainedModelRequest& model,
                                  const std::string& prompt,
                                  const engine::SamplingOptions& sampling) {
  engine::GenerationRequest request{
      .model = model, .options = {.sampling = sampling}, .prompts = {prompt}};
  std::string text = prompt;
  request.on_text = [&](std::string_view piece) { text += piece; };
  engine::generate(request);
  return text;
}

}  // namespace sherd::test
