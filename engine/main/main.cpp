/// The program `sherd`: reads the command line, calls the engine, prints errors, picks exit codes.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "core/error.h"
#include "engine/launch/system_info.h"
#include "engine/main/chat_command.h"
#include "engine/main/checkpoint_commands.h"
#include "engine/main/command_line.h"
#include "engine/main/data_command.h"
#include "engine/main/failure.h"
#include "engine/main/init_command.h"
#include "engine/main/launch_command.h"
#include "engine/main/plan_command.h"
#include "engine/main/report_command.h"
#include "engine/main/runs_command.h"
#include "engine/main/sample_command.h"
#include "engine/main/schedule_command.h"
#include "engine/main/score_command.h"
#include "engine/main/standard_streams.h"
#include "engine/main/tokenize_command.h"
#include "engine/main/train_command.h"
#include "engine/recipe/recipe.h"
#include "engine/recipe/text.h"

namespace {

using sherd::engine::RecipeRequest;

struct RecipeOptions {
  bool help_fields = false;
  bool markdown = false;
};

/// RECIPE, --set and --ranks, the same for every command that reads a recipe.
CLI::Option* add_recipe_arguments(CLI::App& command, RecipeRequest& request) {
  sherd::main::add_ranks(command, request.ranks, "Number of ranks; with replicas, per replica");
  // One value per --set: without this, CLI11 would also take the words that follow it.
  command.add_option("--set", request.sets, "Override a key of the recipe; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command.add_flag_callback(
      "--share-device", [&request] { request.sets.emplace_back("run.share_device=true"); },
      "Put several ranks on one GPU");
  return command.add_option("recipe", request.path, "Recipe, a YAML file")->type_name("RECIPE");
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

int run(int argc, char** argv) {
  CLI::App app("Sherd trains transformers with sharded state (ZeRO stages 0 to 3).", "sherd");
  app.set_version_flag("--version", fmt::format("sherd {}", sherd::engine::version()));
  app.require_subcommand(1);

  RecipeRequest request;
  RecipeOptions options;
  CLI::App* train = app.add_subcommand("train", "Train a model from a recipe");
  add_recipe_arguments(*train, request)->required();
  CLI::App* recipe = app.add_subcommand("recipe", "Print a recipe with every value and its origin");
  add_recipe_arguments(*recipe, request);
  recipe->add_flag("--help-fields", options.help_fields, "Print every recipe key");
  recipe->add_flag("--markdown", options.markdown, "Print docs/recipe.md");
  CLI::App* plan =
      app.add_subcommand("plan", "Show the memory and traffic of a recipe, and whether it fits");
  add_recipe_arguments(*plan, request)->required();
  const sherd::main::PlanCommand plan_command(*plan, request);
  CLI::App* data =
      app.add_subcommand("data", "Print sequences as a run sees them, with their targets");
  add_recipe_arguments(*data, request)->required();
  const sherd::main::DataCommand data_command(*data, request);
  const sherd::main::CheckpointCommands checkpoints(app);
  const sherd::main::SampleCommand sample_command(app);
  const sherd::main::ChatCommand chat_command(app);
  const sherd::main::ScoreCommand score_command(app);
  const sherd::main::RunsCommand runs_command(app);
  const sherd::main::ReportCommand report_command(app);
  const sherd::main::ScheduleCommand schedule_command(app);
  CLI::App* init = app.add_subcommand("init", "Write a first recipe for a folder of texts");
  const sherd::main::InitCommand init_command(*init);
  const sherd::main::TokenizeCommand tokenize_command(app);
  const sherd::main::LaunchCommand launch_command(app);
  CLI::App* info =
      app.add_subcommand("info", "Print version, libraries and this machine's devices");

  sherd::main::check_words(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    app.exit(help_or_version);  // prints it
    return 0;
  } catch (const CLI::ParseError& error) {
    throw sherd::UsageError("{}", sherd::main::explain(app, error, argc, argv));
  }
  if (*train) return sherd::main::train(request);
  if (launch_command) return launch_command.run();
  if (*recipe) print_recipe(request, options);
  if (*plan) plan_command.run();
  if (*data) data_command.run();
  checkpoints.run_chosen();
  if (sample_command) sample_command.run();
  if (chat_command) chat_command.run();
  if (score_command) score_command.run();
  if (runs_command) runs_command.run();
  if (report_command) report_command.run();
  if (schedule_command) schedule_command.run();
  if (*init) init_command.run();
  if (tokenize_command) tokenize_command.run();
  if (*info) fmt::print("{}", sherd::engine::system_info());
  return 0;
}

// Kernels keep panels of some 200 KiB on the stack. This thread's stack grows when it is touched, and
// where memory has run out by then (ulimit -v) that is a crash instead of an error; so it grows now.
[[gnu::noinline]] void grow_stack() {
  constexpr std::size_t kRoom = std::size_t{1} << 20, kPage = 4096;
  [[maybe_unused]] volatile char room[kRoom];
  for (std::size_t i = 0; i < kRoom; i += kPage) room[i] = 0;
}

}  // namespace

int main(int argc, char** argv) {
  grow_stack();
  sherd::main::open_closed_streams();
  try {
    const int exit_code = run(argc, argv);
    const std::string problem = sherd::main::output_problem();
    if (problem.empty()) return exit_code;
    sherd::main::print_error("sherd: " + problem);
    return sherd::main::kUnexpected;
  } catch (...) {
    const sherd::main::Failure failure = sherd::main::failure_of(std::current_exception());
    for (const std::string& line : failure.lines) sherd::main::print_error("sherd: " + line);
    return failure.exit_code;
  }
}
