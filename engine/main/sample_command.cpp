#include "engine/main/commands.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_bounds.h"
#include "core/small_file.h"
#include "engine/inference/generation.h"
#include "engine/main/chosen_checkpoint.h"
#include "engine/main/command_line.h"
#include "engine/main/standard_streams.h"
#include "engine/main/world.h"

namespace sherd::main {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostPromptBytes = std::int64_t{1} << 30;

std::string prompt_of_line(const std::string& line, const std::string& where) {
  check_json_bounds(line, where);
  const Json json = Json::parse(line, nullptr, false);
  if (json.is_string()) return json.get<std::string>();
  const auto found = json.is_object() ? json.find("prompt") : json.end();
  if (found == json.end() || !found->is_string()) {
    throw DataError("{}: a line is {{\"prompt\": \"...\"}}, or a text in quotes.", where);
  }
  return found->get<std::string>();
}

std::vector<std::string> read_prompts(const std::string& path) {
  std::ifstream file;
  if (path != "-") {
    require_no_folder(path, "--prompts");
    const std::string problem = problem_of_file(path, kMostPromptBytes);
    if (!problem.empty()) throw UsageError("--prompts {}: can't be read: {}.", path, problem);
    file.open(path);
  }
  std::istream& lines = path == "-" ? std::cin : file;
  std::vector<std::string> prompts;
  std::int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    prompts.push_back(prompt_of_line(line, fmt::format("{}:{}", path, number)));
  }
  if (prompts.empty()) throw DataError("{}: contains no prompt.", path);
  return prompts;
}

void print_speed(const engine::GeneratedText& text) {
  fmt::print(stderr, "{} tokens of the prompt in {:.3f} s; then {} in {:.3f} s: {:.2f} tokens/s\n",
             text.prompt_tokens, text.first_seconds, text.num_tokens - 1, text.other_seconds,
             static_cast<double>(text.num_tokens - 1) / text.other_seconds);
}

// `sherd sample`: text from a checkpoint or a Hugging Face folder.
class SampleCommand {
 public:
  explicit SampleCommand(CLI::App& command);
  int run() const {
    return in_world([this](const auto& processes) { sample(processes); });
  }

 private:
  void sample(const std::shared_ptr<sharding::Processes>& processes) const;

  std::string path_;
  std::vector<std::string> sets_;
  std::optional<std::int64_t> ranks_;
  bool average_ = false;
  std::string prompt_;
  std::string prompts_file_;  ///< JSON lines in, JSON lines out
  std::vector<std::string> stops_;
  bool ignores_end_tokens_ = false;
  bool shows_speed_ = false;
  engine::SamplingOptions sampling_{.num_tokens = 200, .temperature = 0.8};
};

SampleCommand::SampleCommand(CLI::App& command) {
  add_trained_model(command, path_, sets_);
  add_ranks(command, ranks_, "Number of ranks (default 1)");
  add_average(command, average_);
  CLI::Option* prompt = command.add_option("--prompt", prompt_, "Beginning of the text");
  command
      .add_option(
          "--prompts", prompts_file_,
          "File with one {\"prompt\": \"...\"} per line, or - for standard input. Texts are "
          "printed as JSON lines; ranks divide the prompts")
      ->type_name("FILE.jsonl")
      ->excludes(prompt);
  add_sampling(command, sampling_, "Maximum tokens to add (default 200)");
  command.add_option("--stop", stops_, "End the text before this string; may be repeated")
      ->allow_extra_args(false);
  command.add_flag("--ignore-end", ignores_end_tokens_,
                   "Continue after a token that ends a text (eos_token_id of a folder)");
  command.add_flag("--speed", shows_speed_, "Print the speed to standard error");
}

void SampleCommand::sample(const std::shared_ptr<sharding::Processes>& processes) const {
  const bool as_json = !prompts_file_.empty();
  require_file_of_all(processes, prompts_file_, "--prompts");
  const std::vector<std::string> prompts =
      as_json ? read_prompts(prompts_file_) : std::vector{prompt_};
  const engine::ChosenCheckpoint chosen = chosen_checkpoint(path_, processes);
  engine::GenerationRequest request{
      .model = {.checkpoint = chosen.path,
                .sets = sets_,
                .ranks = ranks_or_processes(ranks_, processes).value_or(1),
                .average = average_,
                .processes = processes},
      .options = {.sampling = sampling_,
                  .stops = stops_,
                  .ignores_end_tokens = ignores_end_tokens_,
                  .for_terminal = !as_json},
      .prompts = prompts};
  if (!speaks(processes)) return engine::generate(request);
  request.on_note = [](const std::string& note) { print_error("note: " + note); };
  if (as_json) {
    request.on_end = [&](std::size_t prompt, const engine::GeneratedText& result) {
      const Json line = {{"prompt", request.prompts[prompt]},
                         {"text", result.text},
                         {"tokens", result.num_tokens},
                         {"end", engine::name_of(result.end)}};
      fmt::print("{}\n", line.dump(-1, ' ', false, Json::error_handler_t::replace));
      std::fflush(stdout);
      if (shows_speed_) print_speed(result);
    };
    return engine::generate(request);
  }
  bool began = false;
  const auto show = [&](std::string_view text) {
    if (!began) fmt::print("{}", prompt_);
    began = true;
    fmt::print("{}", text);
    std::fflush(stdout);
  };
  request.on_text = show;
  request.on_end = [&](std::size_t, const engine::GeneratedText& result) {
    show("\n");
    if (shows_speed_) print_speed(result);
  };
  engine::generate(request);
}

}  // namespace

Command sample_command(CLI::App& program) {
  return make_command<SampleCommand>(program, "sample",
                                     "Generate text with the model, and print it as it comes");
}

}  // namespace sherd::main
