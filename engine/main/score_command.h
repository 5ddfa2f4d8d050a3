/// `sherd score`: how likely a model thinks texts are; engine/inference/scoring.h.
#pragma once

#include <CLI/CLI.hpp>

#include "engine/inference/scoring.h"

namespace sherd::main {

class ScoreCommand {
 public:
  explicit ScoreCommand(CLI::App& app);
  explicit operator bool() const { return command_->parsed(); }
  void run() const;

 private:
  void answer_questions() const;
  void score_texts() const;
  engine::ScoringRequest request() const;

  CLI::App* command_;
  std::string path_;
  std::vector<std::string> sets_;
  std::optional<std::int64_t> ranks_;
  std::string questions_ = "-";
  std::vector<std::string> texts_;  ///< files to be scored as a whole each, instead of questions
  std::int64_t context_ = 0;
};

}  // namespace sherd::main
