#include <fmt/format.h>

#include "engine/main/shell/completion.h"

namespace sherd::main {
namespace {

constexpr std::string_view kZshMain = R"(
_sherd_setting() {  # KEY=VALUE
  if compset -P '*='; then
    _sherd_values "${${IPREFIX%=}##*=}"
  else
    compadd -q -S '=' -a _sherd_keys
  fi
}

_sherd() {
  local curcontext=$curcontext state line
  _arguments -C '(- *)--help[Print the help]' '(- *)--version[Print the version]' \
    '1:command:->command' '*::argument:->arguments'
  case $state in
    command) _describe command _sherd_commands ;;
    arguments) _sherd_arguments "$words[1]" ;;
  esac
}

if [[ $funcstack[1] == _sherd ]]; then
  _sherd "$@"
else
  compdef _sherd sherd
fi
)";

std::string zsh_action_of(const OptionRow& row) {
  switch (row.kind) {
    case ValueKind::kRecipe:
      return R"x(_files -g "*.(yaml|yml)")x";
    case ValueKind::kFolder:
      return "_files -/";
    case ValueKind::kFile:
    case ValueKind::kModel:
      return "_files";
    case ValueKind::kSetting:
      return "_sherd_setting";
    case ValueKind::kChoice:
      return fmt::format("({})", words_of(row.choices));
    case ValueKind::kCommand:
      return "_sherd";
    case ValueKind::kNone:
    case ValueKind::kOther:
      break;
  }
  return " ";
}

// Inside of an _arguments specification, in single quotes.
std::string description(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return single_quoted(out);
}

std::string specification_of(const OptionRow& row, const std::string& name) {
  const bool repeats = row.may_repeat || row.kind == ValueKind::kSetting;
  std::string out = fmt::format("'{}{}[{}]", repeats ? "*" : "", name, description(row.help));
  if (row.kind != ValueKind::kNone) {
    out += fmt::format(":{}:{}", description(row.value), zsh_action_of(row));
  }
  return out + "'";
}

std::string zsh_arguments_of(const CommandRow& command) {
  std::string out = fmt::format("    {})\n      _arguments", command.name);
  for (const OptionRow& row : command.options) {
    for (const std::string& name : row.names) out += " \\\n        " + specification_of(row, name);
  }
  for (const OptionRow& row : command.positionals) {
    const bool is_command = row.kind == ValueKind::kCommand;
    out += fmt::format(" \\\n        '{}:{}:{}'",
                       is_command       ? "*:"
                       : row.may_repeat ? "*"
                                        : "",
                       description(row.names[0]), zsh_action_of(row));
  }
  return out + " ;;\n";
}

}  // namespace

std::string zsh_completion(const CommandTable& commands, const KeyTable& keys) {
  std::string out =
      "#compdef sherd\n# Completion of sherd for zsh, written by: sherd completion zsh\n\n"
      "_sherd_commands=(\n";
  for (const CommandRow& command : commands) {
    out += fmt::format("  '{}:{}'\n", command.name, description(command.help));
  }
  out += ")\n_sherd_keys=(\n";
  std::string values;
  for (const KeyRow& key : keys) {
    out += fmt::format("  {}\n", key.key);
    if (key.values.empty()) continue;
    values += fmt::format("    {}) compadd {} ;;\n", key.key, words_of(key.values));
  }
  out += ")\n_sherd_values() {  # of a key\n  case $1 in\n" + values + "  esac\n}\n";
  out += "_sherd_arguments() {  # of a command\n  case $1 in\n";
  for (const CommandRow& command : commands) out += zsh_arguments_of(command);
  return out + "  esac\n}\n" + std::string(kZshMain);
}

}  // namespace sherd::main
