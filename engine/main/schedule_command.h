/// `sherd schedule`: draws a pipeline schedule and says what it costs; engine/schedule/report.h.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace sherd::main {

class ScheduleCommand {
 public:
  explicit ScheduleCommand(CLI::App& app);
  explicit operator bool() const { return command_->parsed(); }
  /// Errors   UsageError: numbers that the schedule can't take, or a file that can't be written.
  void run() const;

 private:
  CLI::App* command_;
  std::string schedule_, trace_;
  int num_ranks_ = 0, num_micro_batches_ = 0, chunks_per_rank_ = 0;
  std::vector<double> times_ = {1.0, 1.0, 1.0};
  double message_ = 0.0, overlap_ = 0.0;
  bool lists_ = false;
};

}  // namespace sherd::main
