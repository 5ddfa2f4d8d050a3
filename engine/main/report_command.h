/// `sherd report`: runs side by side; engine/run/run_report.h.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace sherd::main {

class ReportCommand {
 public:
  explicit ReportCommand(CLI::App& app);
  explicit operator bool() const { return command_->parsed(); }
  void run() const;

 private:
  CLI::App* command_;
  std::vector<std::string> folders_;
  std::string html_;
};

}  // namespace sherd::main
