#include "engine/main/command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "engine/recipe/suggest.h"

namespace sherd::main {
namespace {

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

// CLI::Range takes nan, which is neither too small nor too large.
CLI::Validator number_between(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        double value = 0;
        const bool is_number = CLI::detail::lexical_cast(text, value);
        if (is_number && value >= least && value <= most) return {};
        return fmt::format("Value {} not in range [{} - {}]", text, least, most);
      },
      fmt::format("FLOAT in [{} - {}]", least, most));
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string_view> views(const std::vector<std::string>& texts) {
  return {texts.begin(), texts.end()};
}

std::string meant(std::string_view wrong, const std::vector<std::string>& names) {
  const std::string_view name = engine::nearest(wrong, views(names));
  return name.empty() ? "" : fmt::format(" Did you mean {}?", name);
}

void check_command(const CLI::App& app, std::string_view word) {
  const std::vector<std::string> names = command_names(app);
  if (word.empty() || word.starts_with("-")) return;
  if (std::find(names.begin(), names.end(), word) != names.end()) return;
  if (word.ends_with(".yaml") || word.ends_with(".yml")) {
    throw UsageError("{}: no command. Write sherd train {}.", word, word);
  }
  throw UsageError("\"{}\" isn't a command.{} Commands are {}.", word, meant(word, names),
                   engine::joined(views(names), ", ", " and "));
}

// block.key=value
bool is_setting(std::string_view word) {
  const std::string_view key = word.substr(0, word.find('='));
  return key.size() < word.size() && key.find('.') != key.npos &&
         key.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.") == key.npos;
}

// Text to continue may be empty, and --set says itself what it expects.
void check_value(std::string_view option, std::string_view value) {
  if (!option.starts_with("--") || !value.empty()) return;
  if (option == "--prompt" || option == "--set") return;
  throw UsageError("{} is empty; give it a value, or omit it.", option);
}

}  // namespace

void check_words(const CLI::App& app, int argc, const char* const* argv) {
  if (argc > 1) check_command(app, argv[1]);
  for (int i = 2; i < argc; ++i) {
    const std::string_view word = argv[i];
    check_value(argv[i - 1], word.empty() ? word : "x");
    if (word.ends_with('=')) check_value(word.substr(0, word.size() - 1), "");
  }
}

std::string explain(const CLI::App& app, const CLI::ParseError& error, int argc,
                    const char* const* argv) {
  const std::string text = fmt::format("{}. Run sherd --help.", error.what());
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr || argc < 2) return text;
  const auto commands =
      app.get_subcommands([&](const CLI::App* command) { return command->get_name() == argv[1]; });
  if (commands.empty()) return text;
  const std::vector<std::string> names = option_names(*commands[0]);
  if (std::find(names.begin(), names.end(), "--set") != names.end()) {
    for (const std::string& word : commands[0]->remaining(true)) {
      if (!is_setting(word)) continue;
      return fmt::format("{} has no option; each KEY=VALUE needs its own --set: --set {}", word,
                         word);
    }
  }
  for (int i = 2; i < argc; ++i) {
    const std::string_view word = argv[i];
    const std::string_view option = word.substr(0, word.find('='));
    if (!option.starts_with("-")) continue;
    if (std::find(names.begin(), names.end(), option) != names.end()) continue;
    const std::string name = meant(option, names);
    if (!name.empty()) {
      return fmt::format("{} has no option {}.{}", argv[1], option, name);
    }
  }
  return text;
}

void add_average(CLI::App& command, bool& average) {
  command.add_flag("--average", average,
                   "Use the average of the weights (averages.type of the recipe)");
}

void add_context(CLI::App& command, std::int64_t& context) {
  command
      .add_option("--context", context,
                  "Maximum tokens that the model reads, the text included (default: a run's "
                  "seq_length, all that a folder's model can)")
      ->check(CLI::Range(2, 1 << 24));
}

void add_trained_model(CLI::App& command, std::string& path, std::vector<std::string>& sets) {
  command
      .add_option("checkpoint", path,
                  "Checkpoint folder, run folder for its newest, or Hugging Face folder")
      ->type_name("CKPT")
      ->required();
  command.add_option("--set", sets, "Override a key of its recipe, such as data.validation_path")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

void require_no_folder(const std::string& path, const std::string& option) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return;
  throw UsageError("{} {}: is a folder; name a file.", option, path);
}

void add_sampling(CLI::App& command, engine::SamplingOptions& sampling, const std::string& tokens) {
  command.add_option("--tokens", sampling.num_tokens, tokens)->check(CLI::Range(1, 1 << 30));
  command
      .add_option("--temperature", sampling.temperature,
                  "0: always the most likely token (default 0.8)")
      ->check(number_between(0.0, 100.0));
  command
      .add_option("--top-k", sampling.top_k,
                  "Sample among the k most likely tokens; 0: all (default 0)")
      ->check(CLI::Range(0, 1 << 30));
  command
      .add_option(
          "--top-p", sampling.top_p,
          "Sample among the most likely tokens with total probability p; 1: all (default 1)")
      ->check(number_between(0.0, 1.0));
  command.add_option("--seed", sampling.seed, "Random seed (default 0)");
}

CLI::Option* add_recipe(CLI::App& command, engine::RecipeRequest& request) {
  add_ranks(command, request.ranks,
            "Data-parallel ranks of a replica; other degrees multiply them");
  // One value per --set: without this, CLI11 would also take the words that follow it.
  command.add_option("--set", request.sets, "Override a key of the recipe; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command.add_flag_callback(
      "--share-device", [&request] { request.sets.emplace_back("run.share_device=true"); },
      "Put several ranks on one GPU");
  return command.add_option("recipe", request.path, "Recipe, a YAML file")->type_name("RECIPE");
}

CLI::Option* add_ranks(CLI::App& command, std::optional<std::int64_t>& ranks,
                       const std::string& help) {
  const auto read = [&ranks](const std::string& text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      throw UsageError("--ranks is \"{}\"; expected a whole number from 1 to 65536.", text);
    }
    ranks = value;
  };
  return command.add_option_function<std::string>("--ranks", read, help)->type_name("N");
}

}  // namespace sherd::main
