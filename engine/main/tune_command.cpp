#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "engine/main/command_line.h"
#include "engine/main/commands.h"
#include "engine/plan/tune/tune.h"
#include "engine/recipe/segments.h"

namespace sherd::main {
namespace {

// `sherd tune`: which of the best layouts is fastest here.
class TuneCommand {
 public:
  explicit TuneCommand(CLI::App& command) {
    add_recipe(command, request_)->required();
    command.add_option("--output", output_, "Write the fastest layout as a recipe to FILE")
        ->type_name("FILE");
    command.add_option("--top", tune_.search.top, "How many layouts to measure (default: 3)")
        ->type_name("N")
        ->check(CLI::Range(1, 20));
    command.add_option("--rounds", tune_.rounds, "Turns of each layout (default: 3)")
        ->type_name("N")
        ->check(CLI::Range(1, 100));
    command.add_option("--steps", tune_.steps, "Measured steps in a turn (default: 4)")
        ->type_name("N")
        ->check(CLI::Range(1, 1000));
    command
        .add_option("--keep", tune_.search.keep, "Keys, or blocks of keys, that stay as they are")
        ->type_name("KEY");
  }
  void run() const {
    if (!output_.empty() && std::filesystem::exists(output_)) {
      throw UsageError("{} exists. Name another file with --output.", output_);
    }
    engine::RecipeRequest request = request_;
    request.reads_data = false;
    const engine::ResolvedRecipe recipe = engine::resolve_recipe(request);
    engine::require_one_shape(recipe.values, "sherd tune");
    const auto rates = engine::rates_for(recipe.values, {});
    engine::TuneRequest wanted = tune_;
    wanted.on_message = [](const std::string& text) { fmt::print(stderr, "{}\n", text); };
    const engine::TuneResult result = engine::tune(recipe, wanted, *rates);
    fmt::print("{}", engine::tune_text(result));
    if (output_.empty()) return;
    std::ofstream file(output_);
    file << engine::tuned_recipe(result, request_.path);
    if (!file.flush()) throw DataError("{}: can't be written.", output_);
    fmt::print("{}\n", output_);
  }

 private:
  engine::RecipeRequest request_;
  engine::TuneRequest tune_;
  std::string output_;
};

}  // namespace

Command tune_command(CLI::App& program) {
  return make_command<TuneCommand>(program, "tune",
                                   "Measure the best layouts of a recipe here, taking turns");
}

}  // namespace sherd::main
