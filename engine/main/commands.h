/// The program's commands. One function for each adds it to the command line and returns what runs
/// it.
///
/// A command is a class in its own source file. Its constructor adds options to the subcommand, its
/// members hold their values, and `run` does the work: it returns nothing, or an exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace sherd::main {

struct Command {
  const CLI::App* words;
  std::function<int()> run;  ///< returns the exit code
};

Command train_command(CLI::App& program);  ///< in one process, or as one of several
Command sweep_command(CLI::App& program);
Command recipe_command(CLI::App& program);
Command plan_command(CLI::App& program);
Command tune_command(CLI::App& program);
Command data_command(CLI::App& program);
Command inspect_command(CLI::App& program);
Command verify_command(CLI::App& program);
Command export_command(CLI::App& program);
Command merge_command(CLI::App& program);
Command eval_command(CLI::App& program);
Command sample_command(CLI::App& program);
Command chat_command(CLI::App& program);
Command score_command(CLI::App& program);
Command runs_command(CLI::App& program);
Command report_command(CLI::App& program);
Command schedule_command(CLI::App& program);
Command mup_check_command(CLI::App& program);  ///< returns 5 if activations depend on the width
Command init_command(CLI::App& program);
Command tokenize_command(CLI::App& program);
Command launch_command(CLI::App& program);
Command info_command(CLI::App& program);
Command completion_command(CLI::App& program);
Command man_command(CLI::App& program);

/// All of them, in the order of `sherd --help`.
std::vector<Command> add_commands(CLI::App& program);

template <class T>
Command make_command(CLI::App& program, const char* name, const char* help) {
  CLI::App* words = program.add_subcommand(name, help);
  const auto command = std::make_shared<T>(*words);
  return {words, [command]() -> int {
            if constexpr (std::is_void_v<decltype(command->run())>) {
              command->run();
              return 0;
            } else {
              return command->run();
            }
          }};
}

}  // namespace sherd::main
