#include "engine/main/data_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

namespace sherd::main {

DataCommand::DataCommand(CLI::App& command, const engine::RecipeRequest& request)
    : request_(request) {
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
  fmt::print("{}", engine::shown_data(engine::resolve_recipe(request_).values, show));
}

}  // namespace sherd::main
