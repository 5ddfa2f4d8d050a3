#include "engine/main/runs_command.h"

#include <fmt/format.h>

#include <ctime>

#include "engine/run/run_list.h"

namespace sherd::main {

RunsCommand::RunsCommand(CLI::App& app)
    : command_(app.add_subcommand("runs", "List runs: state, steps, losses, speed, checkpoints")) {
  command_->add_option("folder", folder_, "Folder of runs, or one run's folder (default runs)")
      ->type_name("FOLDER");
  command_->add_flag("--json", json_, "Print one JSON object per run and line");
}

void RunsCommand::run() const {
  const auto runs = engine::list_runs(folder_);
  if (json_) {
    fmt::print("{}", engine::runs_json(runs));
  } else if (runs.empty()) {
    fmt::print("no runs in {}\n", folder_);
  } else {
    fmt::print("{}", engine::runs_text(runs, std::time(nullptr)));
  }
}

}  // namespace sherd::main
