/// Reads an input as arguments of --set, one setting per line, for a correct recipe.
#pragma once

#include <algorithm>

#include "engine/recipe/recipe.h"
#include "tests/fuzz/fuzz.h"

namespace sherd::fuzz {

inline engine::ResolvedRecipe recipe_with(std::string_view settings) {
  engine::RecipeRequest request{
      .path = "fuzz.yaml",
      .text =
          "model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, vocab_size: 256}\n"
          "data: {path: text.txt}\n"
          "training: {seq_length: 16, global_batch_size: 8, max_steps: 100}\n"};
  while (!settings.empty() && request.sets.size() < 16) {
    const std::size_t end = std::min(settings.find('\n'), settings.size());
    request.sets.emplace_back(settings.substr(0, end));
    settings.remove_prefix(std::min(end + 1, settings.size()));
  }
  return engine::resolve_recipe(request);
}

}  // namespace sherd::fuzz
