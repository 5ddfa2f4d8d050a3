#include "engine/main/commands.h"

#include "engine/main/serve/serve_command.h"

namespace sherd::main {

std::vector<Command> add_commands(CLI::App& program) {
  std::vector<Command> commands;
  for (Command (*add)(CLI::App&) :
       {train_command,    sweep_command,   recipe_command,   plan_command,       tune_command,
        data_command,     inspect_command, verify_command,   export_command,     merge_command,
        eval_command,     sample_command,  chat_command,     serve_command,      score_command,
        runs_command,     report_command,  schedule_command, mup_check_command,  init_command,
        tokenize_command, launch_command,  info_command,     completion_command, man_command}) {
    commands.push_back(add(program));
  }
  return commands;
}

}  // namespace sherd::main
