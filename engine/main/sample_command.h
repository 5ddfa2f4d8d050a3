/// `sherd sample`: text from a checkpoint or a Hugging Face folder.
#pragma once

#include <CLI/CLI.hpp>

#include "engine/inference/generation.h"

namespace sherd::main {

class SampleCommand {
 public:
  explicit SampleCommand(CLI::App& app);
  explicit operator bool() const { return command_->parsed(); }
  void run() const;

 private:
  CLI::App* command_;
  std::string path_;
  std::vector<std::string> sets_;
  std::optional<std::int64_t> ranks_;
  std::string prompt_;
  std::string prompts_file_;  ///< JSON lines in, JSON lines out
  std::vector<std::string> stops_;
  bool ignores_end_tokens_ = false;
  bool shows_speed_ = false;
  engine::SamplingOptions sampling_{.num_tokens = 200, .temperature = 0.8};
};

}  // namespace sherd::main
