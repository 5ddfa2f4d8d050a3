/// The Hugging Face family as which a recipe's model is exported, if the run didn't start from a
/// folder.
///
/// It is the first family whose config.json, read back, means the same model (model_meaning.h). If
/// there is none, it is the first that matches when biases that the model lacks are zero: GPT-2 for
/// nanoGPT's shape without biases.
#pragma once

#include <string>

#include "core/dtype.h"
#include "engine/huggingface/config.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {

struct WrittenFamily {
  std::string config;        ///< text of config.json; empty: no family matches
  bool adds_biases = false;  ///< of zeros
  std::string family;        ///< model_type; if none matches, of the nearest
  std::string key;           ///< if none matches: the first key in which the nearest differs,
  std::string ours, theirs;  ///< with both values

  bool exists() const { return !config.empty(); }
  /// "no model of Hugging Face's library has ...", if none matches.
  std::string reason() const;
};

WrittenFamily written_family(const Recipe& recipe, DType dtype);

/// A line that a run prints at its start if its model can't be exported; "" if it can.
std::string export_note(const Recipe& recipe);

/// The first key in which the models of a config.json and the recipe differ, with both values; ""
/// if they are the same.
std::string first_difference(const huggingface::ModelConfig& config, const Recipe& recipe,
                             bool missing_biases_are_zero = false);

}  // namespace sherd::engine
