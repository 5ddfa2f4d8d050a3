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
  /// For the first line of `main`: a signal that comes before `run` isn't lost.
  static void take_signals();
  /// Waits for mpirun and returns its exit code. SIGTERM, SIGUSR1 and SIGHUP reach every process as
  /// SIGUSR1, so that a run saves and ends (engine/train/stop_request.h); whenever they come, the code is then 75.
  /// mpirun ends when this process does, even by SIGKILL.
  /// A restart leaves out machines that don't answer, as far as --min-processes allows.
  /// Errors   UsageError: there is no mpirun, or no command.
  int run() const;

 private:
  struct Host {
    std::string name;
    int slots = 1;
  };
  struct World {
    int num_processes = 0;
    std::vector<Host> hosts;  ///< empty: this machine
  };
  World first_world() const;
  /// The machines of `world` that answer, with their processes.
  World without_lost_hosts(const World& world) const;
  std::vector<std::string> mpirun_arguments(const World& world) const;

  CLI::App* command_;
  int num_processes_ = 0, num_restarts_ = 0, min_processes_ = 0;
  std::string hosts_;
  std::vector<std::string> words_;
};

}  // namespace sherd::main
