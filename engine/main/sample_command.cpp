#include "engine/main/sample_command.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "engine/main/checkpoint_path.h"
#include "engine/main/command_line.h"
#include "engine/main/standard_streams.h"

namespace sherd::main {
namespace {

using Json = nlohmann::json;

std::string prompt_of_line(const std::string& line, const std::string& where) {
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
  if (path != "-") file.open(path);
  std::istream& lines = path == "-" ? std::cin : file;
  if (!lines) throw UsageError("--prompts {}: can't be read.", path);
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

}  // namespace

SampleCommand::SampleCommand(CLI::App& app)
    : command_(app.add_subcommand("sample", "Generate text from a model")) {
  add_trained_model(*command_, path_, sets_);
  add_ranks(*command_, ranks_, "Number of ranks (default 1)");
  CLI::Option* prompt = command_->add_option("--prompt", prompt_, "Start of the text");
  command_
      ->add_option(
          "--prompts", prompts_file_,
          "File with one {\"prompt\": \"...\"} per line, or - for standard input. Texts are "
          "printed as JSON lines; ranks divide the prompts")
      ->type_name("FILE.jsonl")
      ->excludes(prompt);
  add_sampling(*command_, sampling_, "Maximum tokens to generate (default 200)");
  command_->add_option("--stop", stops_, "The text ends before this string; may be repeated")
      ->allow_extra_args(false);
  command_->add_flag("--ignore-end", ignores_end_tokens_,
                     "Continue after a token that ends a text (eos_token_id of a folder)");
  command_->add_flag("--speed", shows_speed_, "Print the speed on standard error");
}

void SampleCommand::run() const {
  const bool as_json = !prompts_file_.empty();
  engine::GenerationRequest request{
      .model = {checkpoint_path(path_), sets_, ranks_.value_or(1)},
      .options = {.sampling = sampling_,
                  .stops = stops_,
                  .ignores_end_tokens = ignores_end_tokens_,
                  .for_terminal = !as_json},
      .prompts = as_json ? read_prompts(prompts_file_) : std::vector{prompt_}};
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

}  // namespace sherd::main
