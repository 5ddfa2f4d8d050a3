/// `sherd launch`: starts a command in several processes with mpirun.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace sherd::main {

class LaunchCommand {
 public:
  explicit LaunchCommand(CLI::App& app);
  explicit operator bool() const { return command_->parsed(); }
  /// Waits for mpirun and returns its exit code. SIGTERM, SIGUSR1 and SIGHUP reach every process as
  /// SIGUSR1, so that a run saves and ends (engine/train/stop_request.h).
  /// Errors   UsageError: there is no mpirun, or no command.
  int run() const;

 private:
  std::vector<std::string> mpirun_arguments() const;

  CLI::App* command_;
  int num_processes_ = 0, num_restarts_ = 0;
  std::string hosts_;
  std::vector<std::string> words_;
};

}  // namespace sherd::main
