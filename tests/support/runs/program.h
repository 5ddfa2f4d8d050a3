/// Runs a program and keeps what it says, for tests of the command line.
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

/// `arguments` as the program gets them, no shell between. Its input is empty; its output is a
/// pipe, so not a terminal. `on_line` is called with each line of stdout as it comes.
ProgramOutcome run_program(const std::string& path, const std::vector<std::string>& arguments,
                           const std::function<void(pid_t, const std::string& line)>& on_line = {});

}  // namespace sherd::test
