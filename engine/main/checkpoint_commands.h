/// What can be asked of a checkpoint: inspect, verify, export, eval.
#pragma once

#include <CLI/CLI.hpp>

#include "engine/inference/evaluate.h"

namespace sherd::main {

/// Adds the commands; the one that is on the command line runs when `run_chosen` is called.
class CheckpointCommands {
 public:
  explicit CheckpointCommands(CLI::App& app);
  void run_chosen() const;

 private:
  void run_export(const std::string& path) const;

  CLI::App* inspect_;
  CLI::App* verify_;
  CLI::App* export_;
  CLI::App* eval_;
  std::string path_;
  std::string to_;
  std::string to_folder_;
  std::string dtype_;
  std::string shard_size_;
  bool merge_ = false, json_ = false;
  bool digests_ = false;
  bool deep_ = false;
  std::vector<std::string> sets_;
  std::optional<std::int64_t> ranks_;
};

}  // namespace sherd::main
