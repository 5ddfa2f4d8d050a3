/// `sherd inspect`, `sherd verify` and `sherd export`: what can be asked of a checkpoint.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>

namespace sherd::main {

/// Adds the commands; the one that is on the command line runs when `run_chosen` is called.
class CheckpointCommands {
 public:
  explicit CheckpointCommands(CLI::App& app);
  void run_chosen() const;

 private:
  CLI::App* inspect_;
  CLI::App* verify_;
  CLI::App* export_;
  std::string path_;
  std::string to_;
  std::string dtype_ = "f32";
  bool json_ = false;
  bool digests_ = false;
  bool deep_ = false;
};

}  // namespace sherd::main
