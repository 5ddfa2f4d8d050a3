/// The family of Hugging Face's that a model of a recipe is written as, where no folder of one began the run.
///
/// The first family whose config.json, read back, means the same model (model_meaning.h). Where none does, the
/// first that means the same once biases that it has and the model lacks are zero: GPT-2 for nanoGPT's shape
/// without biases.
#pragma once

#include <string>

#include "core/dtype.h"
#include "engine/huggingface/config.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {

struct WrittenFamily {
  std::string config;        ///< text of config.json; empty: there is no such family
  bool adds_biases = false;  ///< of zeros
  std::string family;        ///< model_type; where there is none, the nearest
  std::string key;           ///< where there is none: the first key in which the nearest differs,
  std::string ours, theirs;  ///< with both values

  bool exists() const { return !config.empty(); }
  /// "no model of Hugging Face's library has ...", where there is none.
  std::string reason() const;
};

WrittenFamily written_family(const Recipe& recipe, DType dtype);

/// What a run says at its beginning: a line, where its model couldn't be written; "" where it can.
std::string export_note(const Recipe& recipe);

/// The model of a config.json isn't the recipe's: the first key, with both values; "" if it is.
std::string first_difference(const huggingface::ModelConfig& config, const Recipe& recipe,
                             bool missing_biases_are_zero = false);

}  // namespace sherd::engine
