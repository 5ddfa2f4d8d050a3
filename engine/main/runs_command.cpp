#include "engine/main/commands.h"

#include <fmt/format.h>

#include <ctime>

#include "engine/run/run_list.h"

namespace sherd::main {
namespace {

// `sherd runs`: lists runs; engine/run/run_list.h.
class RunsCommand {
 public:
  explicit RunsCommand(CLI::App& command);
  void run() const;

 private:
  std::string folder_ = "runs";
  bool json_ = false;
};

RunsCommand::RunsCommand(CLI::App& command) {
  command.add_option("folder", folder_, "Folder of runs, or of one run (default runs)")
      ->type_name("FOLDER");
  command.add_flag("--json", json_, "Print one JSON object per run, one per line");
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

}  // namespace

Command runs_command(CLI::App& program) {
  return make_command<RunsCommand>(program, "runs",
                                   "List runs: state, steps, losses, speed, checkpoints");
}

}  // namespace sherd::main
