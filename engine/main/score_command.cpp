#include "engine/main/commands.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numbers>
#include <sstream>

#include "core/error.h"
#include "core/small_file.h"
#include "engine/data/texts.h"
#include "engine/inference/scoring.h"
#include "engine/inference/teacher_scoring.h"
#include "engine/main/chosen_checkpoint.h"
#include "engine/main/command_line.h"
#include "engine/main/standard_streams.h"
#include "engine/main/world.h"

namespace sherd::main {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostTextBytes = std::int64_t{1} << 30;

// As --set names it, or the default.
std::string field_of_lines(const std::vector<std::string>& sets) {
  constexpr std::string_view kKey = "data.field=";
  std::string field = "text";
  for (const std::string& set : sets) {
    if (set.starts_with(kKey)) field = set.substr(kKey.size());
  }
  return field;
}

std::string question_of(const data::MappedFile& text) {
  const auto bytes = text.bytes();
  try {
    return Json{{"text", std::string(bytes.begin(), bytes.end())}}.dump();
  } catch (const Json::type_error&) {
    throw DataError("{}: isn't UTF-8.", text.path());
  }
}

// `sherd score`: how likely a model thinks texts are; engine/inference/scoring.h.
class ScoreCommand {
 public:
  explicit ScoreCommand(CLI::App& command);
  int run() const;

 private:
  void answer_questions(engine::ScoringRequest& request) const;
  void score_texts(engine::ScoringRequest& request) const;
  void save_teacher(const std::string& checkpoint) const;
  engine::ScoringRequest request(const std::string& checkpoint,
                                 const std::shared_ptr<sharding::Processes>& processes) const;

  std::string path_;
  std::vector<std::string> sets_;
  std::optional<std::int64_t> ranks_;
  std::string questions_ = "-";
  std::vector<std::string> texts_;  ///< files to be scored as a whole each, instead of questions
  std::int64_t context_ = 0;
  bool average_ = false;
  std::int64_t save_top_ = 0;  ///< 0: no teacher's file
  engine::RecipeRequest student_;
  std::string output_;
};

ScoreCommand::ScoreCommand(CLI::App& command) {
  add_trained_model(command, path_, sets_);
  add_ranks(command, ranks_, "Number of ranks, which share the questions (default 1)");
  add_average(command, average_);
  command
      .add_option("--questions", questions_,
                  "File with one question per line: {\"context\": ..., \"continuation\": ...}, "
                  "{\"text\": ...} or {\"prompt\": ...} (default: standard input)")
      ->type_name("FILE.jsonl");
  command
      .add_option("--text", texts_,
                  "Text file instead of questions, also .jsonl, .gz, .zst, .parquet or .arrow: "
                  "prints loss, "
                  "perplexity and bits per byte")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command
      .add_option("--context", context_,
                  "Maximum tokens of a text (default 2048, or the model's maximum if smaller)")
      ->check(CLI::Range(2, 1 << 24));
  CLI::Option* student =
      command
          .add_option("--student", student_.path,
                      "Recipe of a run that learns from this model: with --save-top")
          ->type_name("RECIPE");
  CLI::Option* save_top =
      command
          .add_option(
              "--save-top", save_top_,
              "Write the file that distillation.teacher of the student's recipe names: this "
              "model's K likeliest tokens after each token of the student's samples, with "
              "their log-probabilities")
          ->type_name("K")
          ->check(CLI::Range(std::int64_t{1}, engine::most_teacher_tokens()))
          ->needs(student);
  student->needs(save_top);
  command.add_option("--student-set", student_.sets, "Change a key of the student's recipe")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false)
      ->needs(student);
  command.add_option("--output", output_, "The file, if it has another name than in the recipe")
      ->type_name("FILE")
      ->needs(save_top);
}

int ScoreCommand::run() const {
  if (save_top_ > 0) {
    if (num_processes() > 1) throw UsageError("--save-top works in one process.");
    const engine::ChosenCheckpoint chosen = chosen_checkpoint(path_);
    save_teacher(chosen.path);
    return 0;
  }
  return in_world([this](const std::shared_ptr<sharding::Processes>& processes) {
    const engine::ChosenCheckpoint chosen = chosen_checkpoint(path_, processes);
    engine::ScoringRequest request = this->request(chosen.path, processes);
    texts_.empty() ? answer_questions(request) : score_texts(request);
  });
}

engine::ScoringRequest ScoreCommand::request(
    const std::string& checkpoint, const std::shared_ptr<sharding::Processes>& processes) const {
  engine::ScoringRequest request{
      .model = {.checkpoint = checkpoint,
                .sets = sets_,
                .ranks = ranks_or_processes(ranks_, processes).value_or(1),
                .average = average_,
                .processes = processes},
      .context = context_,
      .questions = nullptr,
      .name = {},
      .on_answer = {}};
  if (speaks(processes)) {
    request.on_note = [](const std::string& note) { print_error("note: " + note); };
  }
  return request;
}

void ScoreCommand::answer_questions(engine::ScoringRequest& request) const {
  std::ifstream file;
  require_file_of_all(request.model.processes, questions_, "--questions");
  if (questions_ != "-") {
    require_no_folder(questions_, "--questions");
    const std::string problem = problem_of_file(questions_, INT64_MAX);  // read line by line
    if (!problem.empty())
      throw UsageError("--questions {}: can't be read: {}.", questions_, problem);
    file.open(questions_);
  }
  request.questions = questions_ == "-" ? &std::cin : &file;
  request.name = questions_ == "-" ? "standard input" : questions_;
  request.on_answer = [](const std::string& line) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  };
  engine::answer(request);
}

void ScoreCommand::save_teacher(const std::string& checkpoint) const {
  engine::TeacherRequest request;
  request.student = engine::resolve_recipe(student_);
  request.teacher = this->request(checkpoint, nullptr).model;
  request.top = save_top_;
  request.path = output_;
  if (output_.empty() && !request.student.values.distillation.active()) {
    throw UsageError(
        "--save-top: {} has no distillation.teacher; name the file there, or with "
        "--output.",
        student_.path);
  }
  request.on_note = [](const std::string& note) { print_error("note: " + note); };
  request.on_progress = [tenth = std::int64_t{0}](std::int64_t done, std::int64_t all) mutable {
    if (done * 10 / all == tenth) return;
    tenth = done * 10 / all;
    print_error(fmt::format("{} of {} samples", done, all));
  };
  const engine::SavedTeacher saved = engine::save_teacher(request);
  fmt::print("{}: the {} likeliest tokens after each of {} x {} tokens\n", saved.path, saved.top,
             saved.samples, saved.tokens_per_sample);
}

void ScoreCommand::score_texts(engine::ScoringRequest& request) const {
  std::stringstream questions;
  std::vector<std::size_t> num_texts;  // of each file: a line of a .jsonl file is one
  for (const std::string& path : texts_) {
    require_no_folder(path, "--text");
    const std::string problem = problem_of_file(path, kMostTextBytes);
    if (!problem.empty()) throw UsageError("--text {}: can't be read: {}.", path, problem);
    const data::Texts texts = data::open_texts(path, "--text", field_of_lines(sets_));
    for (const auto& text : texts.texts) questions << question_of(*text) << '\n';
    num_texts.push_back(texts.texts.size());
  }
  request.questions = &questions;
  request.name = "--text";
  std::size_t file = 0, num_answers = 0;
  std::int64_t tokens = 0, bytes = 0;
  double nats = 0.0;
  request.on_answer = [&](const std::string& line) {
    const Json answer = Json::parse(line);
    tokens += answer.at("tokens").get<std::int64_t>();
    bytes += answer.at("bytes").get<std::int64_t>();
    nats -= answer.at("log_likelihood").get<double>();
    if (++num_answers < num_texts[file]) return;
    const double loss = nats / static_cast<double>(tokens);
    fmt::print("{}: {} tokens, {} bytes: loss {:.4f}, perplexity {:.4f}, {:.4f} bits per byte\n",
               texts_[file++], tokens, bytes, loss, std::exp(loss),
               nats / std::numbers::ln2 / static_cast<double>(bytes));
    num_answers = 0;
    tokens = bytes = 0;
    nats = 0.0;
  };
  engine::answer(request);
}

}  // namespace

Command score_command(CLI::App& program) {
  return make_command<ScoreCommand>(
      program, "score",
      "Answer questions about texts, JSON lines in and out: how likely, what follows");
}

}  // namespace sherd::main
