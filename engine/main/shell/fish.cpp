#include <fmt/format.h>

#include "engine/main/shell/completion.h"

namespace sherd::main {
namespace {

// Inside of single quotes, where fish knows \' and \\ alone.
std::string fish_quoted(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string fish_action_of(const OptionRow& row) {
  switch (row.kind) {
    case ValueKind::kRecipe:
      return "-k -x -a '(__fish_complete_suffix .yaml)'";
    case ValueKind::kFolder:
      return "-x -a '(__fish_complete_directories)'";
    case ValueKind::kFile:
    case ValueKind::kModel:
      return "-r -F";
    case ValueKind::kSetting:
      return "-x -a '(__sherd_settings)'";
    case ValueKind::kChoice:
      return fmt::format("-x -a '{}'", words_of(row.choices));
    case ValueKind::kNone:
      return "";
    case ValueKind::kOther:
    case ValueKind::kCommand:
      break;
  }
  return "-x";
}

std::string fish_arguments_of(const CommandRow& command) {
  const std::string begin =
      fmt::format("complete -c sherd -n '__fish_seen_subcommand_from {}'", command.name);
  std::string out;
  for (const OptionRow& row : command.options) {
    std::string names;
    for (const std::string& name : row.names) {
      names += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    }
    const std::string action = fish_action_of(row);
    out += fmt::format("{}{}{}{} -d '{}'\n", begin, names, action.empty() ? "" : " ", action,
                       fish_quoted(row.help));
  }
  if (!command.positionals.empty()) {
    const OptionRow& row = command.positionals[0];
    const std::string action =
        row.kind == ValueKind::kCommand ? "-x -a '(__sherd_commands)'" : fish_action_of(row);
    if (action != "-x") out += fmt::format("{} {}\n", begin, action);
  }
  return out;
}

}  // namespace

std::string fish_completion(const CommandTable& commands, const KeyTable& keys) {
  std::string out = "# Completion of sherd for fish, written by: sherd completion fish\n\n";
  std::string names, settings;
  for (const CommandRow& command : commands) names += command.name + "\n";
  for (const KeyRow& key : keys) {
    if (key.values.empty()) settings += fmt::format("{}=\n", key.key);
    for (const std::string& value : key.values) {
      settings += fmt::format("{}={}\n", key.key, value);
    }
  }
  out += fmt::format("function __sherd_commands\n    printf '%s' '{}'\nend\n", names);
  out += fmt::format("function __sherd_settings\n    printf '%s' '{}'\nend\n\n", settings);
  out +=
      "complete -c sherd -f\n"
      "complete -c sherd -n __fish_use_subcommand -l help -d 'Print the help'\n"
      "complete -c sherd -n __fish_use_subcommand -l version -d 'Print the version'\n";
  for (const CommandRow& command : commands) {
    out += fmt::format("complete -c sherd -n __fish_use_subcommand -a {} -d '{}'\n", command.name,
                       fish_quoted(command.help));
  }
  for (const CommandRow& command : commands) out += fish_arguments_of(command);
  return out;
}

}  // namespace sherd::main
