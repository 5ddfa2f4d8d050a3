/// `model: {from: FOLDER}`: the model's keys come from a Hugging Face folder's config.json.
///
/// The recipe may also set what belongs to the run: dropout, init_std, and with rotary positions
/// max_seq_length. Any other key of the model must agree with the folder. If FOLDER no longer
/// exists, the copy in the run's output folder is used (engine/huggingface/model_files.h).
#pragma once

#include <map>
#include <string>

#include "engine/huggingface/config.h"
#include "engine/recipe/resolution.h"

namespace sherd::engine {

/// Sets the model's keys, and data.tokenizer if it isn't set. Call before defaults are filled in.
/// Reports a problem and returns false if the folder doesn't exist.
bool take_model_from(Resolution& recipe);
/// Compares them with the recipe's own model keys. Call after everything is derived.
void check_model_from(Resolution& recipe);

/// The family of the model that model.from names; nullptr without one.
const huggingface::Family* family_of(const Recipe& recipe);

/// A recipe with the model of a config.json; its other keys are irrelevant.
Recipe recipe_of(const huggingface::ModelConfig& config);

/// Whether a key determines the model: all of `model` except what belongs to the run.
bool says_which_model(std::string_view key);

/// All keys of `model` that follow from a config.json, by name, as YAML: the values of a recipe
/// that sets nothing else about the model.
std::map<std::string, std::string> model_values(const huggingface::ModelConfig& config);

}  // namespace sherd::engine
