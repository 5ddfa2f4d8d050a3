/// `sherd tokenize`: texts become token files.
#pragma once

#include <CLI/CLI.hpp>

#include "engine/data/tokenize/tokenize.h"

namespace sherd::main {

class TokenizeCommand {
 public:
  explicit TokenizeCommand(CLI::App& app);
  explicit operator bool() const { return command_->parsed(); }
  void run() const;

 private:
  CLI::App* command_;
  data::TokenizeOptions options_;
  bool special_tokens_ = false;
};

}  // namespace sherd::main
