#include "engine/main/commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "engine/main/command_line.h"
#include "engine/recipe/recipe.h"
#include "engine/run/show_data.h"

namespace sherd::main {
namespace {

// `sherd data`: what a recipe's data look like; engine/run/show_data.h.
class DataCommand {
 public:
  explicit DataCommand(CLI::App& command);
  void run() const;

 private:
  engine::RecipeRequest request_;
  engine::ShowData show_;
};

DataCommand::DataCommand(CLI::App& command) {
  add_recipe(command, request_)->required();
  command
      .add_option("--show", show_.samples,
                  "Sequences to print, starting with the first step (default 3)")
      ->type_name("N")
      ->check(CLI::Range(0, 10'000));
}

void DataCommand::run() const {
  engine::ShowData show = show_;
  const char* no_colour = std::getenv("NO_COLOR");
  show.colour = ::isatty(STDOUT_FILENO) != 0 && (no_colour == nullptr || *no_colour == '\0');
  fmt::print("{}", engine::shown_data(engine::resolve_recipe(request_), show));
}

}  // namespace

Command data_command(CLI::App& program) {
  return make_command<DataCommand>(program, "data",
                                   "Print sequences as a run sees them, and what is trained on");
}

}  // namespace sherd::main
