/// A small valid recipe, and what the reader says about it.
#pragma once

#include <string>
#include <vector>

#include "core/error.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {

// Line 1 is "model:". Tests that need a line number count from here.
inline constexpr const char* kTinyRecipe = R"(model:
  num_layers: 2
  hidden_size: 64
  num_attention_heads: 4
  vocab_size: 256
data:
  path: text.txt
training:
  seq_length: 16
  global_batch_size: 8
  max_steps: 100
)";

inline ResolvedRecipe resolve(const std::string& text, const std::vector<std::string>& sets = {},
                              std::optional<std::int64_t> ranks = {}) {
  return resolve_recipe({.path = "recipes/tiny.yaml", .text = text, .sets = sets, .ranks = ranks});
}

/// The message of the UsageError that resolving must end in.
inline std::string error_of(const std::string& text, const std::vector<std::string>& sets = {},
                            std::optional<std::int64_t> ranks = {}) {
  try {
    resolve(text, sets, ranks);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

inline std::string error_of_set(const std::string& set) {
  return error_of(kTinyRecipe, {set});
}

}  // namespace sherd::engine
