/// mpirun as a child process, and the signals that `sherd launch` passes on to it.
#pragma once

#include <string>
#include <vector>

namespace sherd::main {

/// Exit code of a run that has saved and should be started again.
inline constexpr int kRequeue = 75;

/// For the first line of `main`, before `launch` runs: catches signals that come early.
void take_launch_signals();
/// The first of SIGTERM, SIGUSR1 and SIGHUP that came; 0: none.
int signal_to_stop();
/// The same, or Ctrl-C, which mpirun gets from the terminal.
bool asked_to_stop();
/// Prints that `signal_to_stop` came too early.
void print_not_begun();

/// Starts mpirun and waits. SIGTERM, SIGUSR1 and SIGHUP reach its processes as SIGUSR1, SIGUSR2 as
/// itself. What they print on standard error is passed on. mpirun ends when this process does.
/// `words`: the program and its arguments.
/// Errors   UsageError: mpirun can't be started.
int exit_code_of_mpirun(std::vector<std::string> words);
/// The same for a run: mpirun's exit code, or kRequeue if a signal ended processes before they
/// could handle it themselves. Prints a message if no process has printed one.
int run_mpirun(std::vector<std::string> words);

}  // namespace sherd::main
