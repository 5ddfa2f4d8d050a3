/// The program `sherd`: reads the command line, calls the engine, prints errors, picks exit codes.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>

#include "core/error.h"
#include "engine/main/checkpoint_commands.h"
#include "engine/main/plan_command.h"
#include "engine/recipe.h"
#include "engine/recipe_text.h"
#include "engine/run.h"
#include "engine/system_info.h"

namespace {

using sherd::engine::RecipeRequest;

constexpr int kUsage = 2;
constexpr int kUnexpected = 1;

struct RecipeOptions {
  bool help_fields = false;
  bool markdown = false;
};

/// RECIPE, --set and --ranks, the same for every command that reads a recipe.
CLI::Option* add_recipe_arguments(CLI::App& command, RecipeRequest& request) {
  command.add_option("--ranks", request.ranks, "Number of ranks")->type_name("N");
  // One value per --set: without this, CLI11 would also take the words that follow it.
  command.add_option("--set", request.sets, "Override a key of the recipe; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command.add_flag_callback(
      "--share-device", [&request] { request.sets.emplace_back("run.share_device=true"); },
      "Put several ranks on one GPU");
  return command.add_option("recipe", request.path, "The recipe, a YAML file")->type_name("RECIPE");
}

void print_recipe(const RecipeRequest& request, const RecipeOptions& options) {
  std::string text;
  if (options.help_fields) {
    text = sherd::engine::recipe_help();
  } else if (options.markdown) {
    text = sherd::engine::recipe_markdown();
  } else if (request.path.empty()) {
    throw sherd::UsageError("sherd recipe: expected a RECIPE, --help-fields or --markdown.");
  } else {
    text = sherd::engine::resolve_recipe(request).yaml();
  }
  fmt::print("{}", text);
}

void run(int argc, char** argv) {
  CLI::App app("Sherd trains transformers with sharded state (ZeRO stages 0 to 3).", "sherd");
  app.set_version_flag("--version", fmt::format("sherd {}", sherd::engine::version()));
  app.require_subcommand(1);

  RecipeRequest request;
  RecipeOptions options;
  CLI::App* train = app.add_subcommand("train", "Train as a recipe says");
  add_recipe_arguments(*train, request)->required();
  CLI::App* recipe = app.add_subcommand("recipe", "Print a recipe with every value and its origin");
  add_recipe_arguments(*recipe, request);
  recipe->add_flag("--help-fields", options.help_fields, "Print every key a recipe can have");
  recipe->add_flag("--markdown", options.markdown, "Print docs/recipe.md");
  CLI::App* plan =
      app.add_subcommand("plan", "Say what a recipe needs and sends, and whether it fits");
  add_recipe_arguments(*plan, request)->required();
  const sherd::main::PlanCommand plan_command(*plan, request);
  const sherd::main::CheckpointCommands checkpoints(app);
  CLI::App* info =
      app.add_subcommand("info", "Print version, libraries and what this machine offers");

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    app.exit(help_or_version);  // prints it
    return;
  }
  if (*train) sherd::engine::train(sherd::engine::resolve_recipe(request));
  if (*recipe) print_recipe(request, options);
  if (*plan) plan_command.run();
  checkpoints.run_chosen();
  if (*info) fmt::print("{}", sherd::engine::system_info());
}

int fail(int exit_code, std::string message) {
  // One line, whatever a file name or a library's message holds.
  std::replace_if(
      message.begin(), message.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; },
      ' ');
  fmt::print(stderr, "sherd: {}\n", message);
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc, argv);
    return std::fflush(stdout) == 0 ? 0 : fail(kUnexpected, "can't write to standard output.");
  } catch (const CLI::ParseError& error) {
    return fail(kUsage, fmt::format("{}. Run sherd --help.", error.what()));
  } catch (const sherd::Error& error) {
    return fail(error.exit_code(), error.what());
  } catch (const std::exception& error) {
    return fail(kUnexpected, error.what());
  }
}
