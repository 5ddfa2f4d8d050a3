/// `model: {from: FOLDER}`: the model's keys come from a Hugging Face folder's config.json.
///
/// Beside it a recipe may set what is the run's own (dropout, init_std, and
/// max_seq_length where positions are rotary); any other key of the model must say what the folder says. Where FOLDER is gone,
/// the copy that the run keeps in its output folder takes its place (engine/huggingface/model_files.h).
#pragma once

#include <map>
#include <string>

#include "engine/huggingface/config.h"
#include "engine/recipe/resolution.h"

namespace sherd::engine {

/// Sets the model's keys, and data.tokenizer where nobody set it. Before defaults are filled in. False,
/// and a problem, if there is no such folder.
bool take_model_from(Resolution& recipe);
/// Compares them with what a person wrote beside `from`. After everything is derived.
void check_model_from(Resolution& recipe);

/// The family of the model that model.from names; nullptr without one.
const huggingface::Family* family_of(const Recipe& recipe);

/// A recipe with the model of a config.json, and nothing else that matters.
Recipe recipe_of(const huggingface::ModelConfig& config);

/// Whether a key of the recipe says which model it is: all of `model` but what is the run's own.
bool says_which_model(std::string_view key);

/// The keys of `model` that a config.json stands for, every one of them, as YAML by name: what a recipe
/// with nothing else about the model has.
std::map<std::string, std::string> model_values(const huggingface::ModelConfig& config);

}  // namespace sherd::engine
