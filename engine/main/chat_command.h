/// `sherd chat`: a conversation with a checkpoint or a Hugging Face folder.
#pragma once

#include <CLI/CLI.hpp>

#include "engine/inference/chat.h"

namespace sherd::main {

class ChatCommand {
 public:
  explicit ChatCommand(CLI::App& app);
  explicit operator bool() const { return command_->parsed(); }
  void run() const;

 private:
  CLI::App* command_;
  std::string path_;
  std::vector<std::string> sets_;
  std::string system_;
  engine::SamplingOptions sampling_{.num_tokens = 256, .temperature = 0.8};
};

}  // namespace sherd::main
