/// `sherd runs`: lists runs; engine/run/run_list.h.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace sherd::main {

class RunsCommand {
 public:
  explicit RunsCommand(CLI::App& app);
  explicit operator bool() const { return command_->parsed(); }
  void run() const;

 private:
  CLI::App* command_;
  std::string folder_ = "runs";
  bool json_ = false;
};

}  // namespace sherd::main
