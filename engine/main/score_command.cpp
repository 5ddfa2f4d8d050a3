#include "engine/main/score_command.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iostream>

#include "core/error.h"
#include "engine/main/checkpoint_path.h"
#include "engine/main/command_line.h"
#include "engine/main/standard_streams.h"

namespace sherd::main {

ScoreCommand::ScoreCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "score",
          "Answer questions about texts, JSON lines in and out: how likely, what follows")) {
  add_trained_model(*command_, path_, sets_);
  add_ranks(*command_, ranks_, "Number of ranks (1), which share the questions");
  command_
      ->add_option("--questions", questions_,
                   "A file with a question per line, {\"context\": ..., \"continuation\": ...}, "
                   "{\"text\": ...} or {\"prompt\": ...}; standard input unless given")
      ->type_name("FILE.jsonl");
  command_
      ->add_option("--context", context_,
                   "Tokens of a text at most (2048, or what the model knows if that is less)")
      ->check(CLI::Range(2, 1 << 24));
}

void ScoreCommand::run() const {
  std::ifstream file;
  if (questions_ != "-") {
    file.open(questions_);
    if (!file) throw UsageError("--questions {}: can't be read.", questions_);
  }
  engine::answer({.model = {checkpoint_path(path_), sets_, ranks_.value_or(1)},
                  .context = context_,
                  .questions = questions_ == "-" ? &std::cin : &file,
                  .name = questions_ == "-" ? "standard input" : questions_,
                  .on_note = [](const std::string& note) { print_error("note: " + note); },
                  .on_answer =
                      [](const std::string& line) {
                        fmt::print("{}\n", line);
                        std::fflush(stdout);
                      }});
}

}  // namespace sherd::main
