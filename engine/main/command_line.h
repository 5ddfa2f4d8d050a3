/// Checks a command line before CLI11 reads it: commands that don't exist, options without a value.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/generate/token_choice.h"
#include "engine/recipe/recipe.h"

namespace sherd::main {

/// Errors   UsageError: the first word isn't a command (suggests one), or an option's value is
///          empty.
void check_words(const CLI::App& app, int argc, const char* const* argv);

/// CLI11's message, with a suggestion for an option that doesn't exist.
std::string explain(const CLI::App& app, const CLI::ParseError& error, int argc,
                    const char* const* argv);

/// CKPT and --set of the commands that use a trained model.
/// --average: use the average of a checkpoint's weights.
void add_average(CLI::App& command, bool& average);
void add_trained_model(CLI::App& command, std::string& path, std::vector<std::string>& sets);

/// --tokens, --temperature, --top-k, --top-p and --seed of the commands that sample text. `tokens`
/// is the help of --tokens.
void add_sampling(CLI::App& command, engine::SamplingOptions& sampling, const std::string& tokens);

/// --context of the commands that keep a conversation or a text in the model's context.
void add_context(CLI::App& command, std::int64_t& context);
/// TrainedModelRequest::if_too_large of these.
inline constexpr const char* kSmallerContext =
    "Use a smaller --context, or a machine with more memory.";

/// Errors   UsageError if `path`, the value of `option`, is a folder instead of a file.
void require_no_folder(const std::string& path, const std::string& option);

/// RECIPE, --set, --ranks and --share-device of the commands that read a recipe; returns RECIPE.
CLI::Option* add_recipe(CLI::App& command, engine::RecipeRequest& request);

/// --ranks N. Errors   UsageError if the text isn't a whole number.
CLI::Option* add_ranks(CLI::App& command, std::optional<std::int64_t>& ranks,
                       const std::string& help);

}  // namespace sherd::main
