/// The program `sherd`: reads the command line, calls the engine, prints errors, picks exit codes.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <string_view>

#include "core/error.h"
#include "engine/launch/early_stop.h"
#include "engine/launch/system_info.h"
#include "engine/main/command_line.h"
#include "engine/main/commands.h"
#include "engine/main/failure.h"
#include "engine/main/mpirun.h"
#include "engine/main/signals_at_start.h"
#include "engine/main/standard_streams.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app("Sherd trains transformers with sharded state (ZeRO stages 0 to 3).", "sherd");
  app.set_version_flag("--version", fmt::format("sherd {}", sherd::engine::version()));
  app.require_subcommand(1);
  const std::vector<sherd::main::Command> commands = sherd::main::add_commands(app);

  sherd::main::check_words(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    app.exit(help_or_version);  // prints it
    return 0;
  } catch (const CLI::ParseError& error) {
    throw sherd::UsageError("{}", sherd::main::explain(app, error, argc, argv));
  }
  for (const sherd::main::Command& command : commands) {
    if (command.words->parsed()) return command.run();
  }
  return 0;
}

// Kernels keep panels of some 200 KiB on the stack. This thread's stack grows when it is touched,
// and where memory has run out by then (ulimit -v) that is a crash instead of an error; so it grows
// now.
[[gnu::noinline]] void grow_stack() {
  constexpr std::size_t kRoom = std::size_t{1} << 20, kPage = 4096;
  [[maybe_unused]] volatile char room[kRoom];
  for (std::size_t i = 0; i < kRoom; i += kPage) room[i] = 0;
}

}  // namespace

int main(int argc, char** argv) {
  sherd::main::restore_signals_at_start();
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command == "train") sherd::engine::begin_early_stop();
  if (command == "launch") sherd::main::take_launch_signals();
  grow_stack();
  sherd::main::open_closed_streams();
  try {
    const int exit_code = run(argc, argv);
    const std::string problem = sherd::main::output_problem();
    if (problem.empty()) return exit_code;
    sherd::main::print_error("sherd: " + problem);
    return exit_code != 0 ? exit_code : sherd::main::kUnexpected;
  } catch (...) {
    const sherd::main::Failure failure = sherd::main::failure_of(std::current_exception());
    for (const std::string& line : failure.lines) sherd::main::print_error("sherd: " + line);
    return failure.exit_code;
  }
}
