#include "engine/main/score_command.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numbers>
#include <sstream>

#include "core/error.h"
#include "engine/main/checkpoint_path.h"
#include "engine/main/command_line.h"
#include "engine/main/standard_streams.h"

namespace sherd::main {

using Json = nlohmann::json;

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
      ->add_option("--text", texts_,
                   "Files of text instead of questions: loss, perplexity and bits per byte of each")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command_
      ->add_option("--context", context_,
                   "Tokens of a text at most (2048, or what the model knows if that is less)")
      ->check(CLI::Range(2, 1 << 24));
}

void ScoreCommand::run() const {
  if (texts_.empty()) return answer_questions();
  score_texts();
}

engine::ScoringRequest ScoreCommand::request() const {
  return {.model = {checkpoint_path(path_), sets_, ranks_.value_or(1)},
          .context = context_,
          .questions = nullptr,
          .name = {},
          .on_note = [](const std::string& note) { print_error("note: " + note); },
          .on_answer = {}};
}

void ScoreCommand::answer_questions() const {
  std::ifstream file;
  if (questions_ != "-") {
    require_no_folder(questions_, "--questions");
    file.open(questions_);
    if (!file) throw UsageError("--questions {}: can't be read.", questions_);
  }
  engine::ScoringRequest request = this->request();
  request.questions = questions_ == "-" ? &std::cin : &file;
  request.name = questions_ == "-" ? "standard input" : questions_;
  request.on_answer = [](const std::string& line) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  };
  engine::answer(request);
}

void ScoreCommand::score_texts() const {
  std::stringstream questions;
  for (const std::string& path : texts_) {
    require_no_folder(path, "--text");
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (!file) throw UsageError("--text {}: can't be read.", path);
    if (text.empty()) throw DataError("{}: holds no text.", path);
    try {
      questions << Json{{"text", text}}.dump() << '\n';
    } catch (const Json::type_error&) {
      throw DataError("{}: isn't UTF-8.", path);
    }
  }
  engine::ScoringRequest request = this->request();
  request.questions = &questions;
  request.name = "--text";
  auto path = texts_.begin();
  request.on_answer = [&](const std::string& line) {
    const Json answer = Json::parse(line);
    const auto tokens = answer.at("tokens").get<std::int64_t>();
    const auto bytes = answer.at("bytes").get<std::int64_t>();
    const double nats = -answer.at("log_likelihood").get<double>();
    const double loss = nats / static_cast<double>(tokens);
    fmt::print("{}: {} tokens, {} bytes: loss {:.4f}, perplexity {:.4f}, {:.4f} bits per byte\n",
               *path++, tokens, bytes, loss, std::exp(loss),
               nats / std::numbers::ln2 / static_cast<double>(bytes));
  };
  engine::answer(request);
}

}  // namespace sherd::main
