/// Runs a program and captures its output, for tests of the command line.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace sherd::test {

struct ProgramOutcome {
  int exit_code = -1;  ///< -1: ended by a signal
  std::string out, err;
};

/// Passes `arguments` directly, without a shell. The program's input is empty; its output is a
/// pipe, not a terminal. Calls `on_line` with each line of stdout as it arrives.
ProgramOutcome run_program(const std::string& path, const std::vector<std::string>& arguments,
                           const std::function<void(pid_t, const std::string& line)>& on_line = {});

}  // namespace sherd::test
