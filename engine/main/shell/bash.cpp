#include <fmt/format.h>

#include "engine/main/shell/completion.h"

namespace sherd::main {
namespace {

// bash splits words at "=": KEY=VALUE is three of them, and so is --option=value. After `launch`
// and --, another command of this program begins.
constexpr std::string_view kBegin =
    R"(# Completion of sherd for bash, written by: sherd completion bash

_sherd_words() { COMPREPLY+=($(compgen -W "$1" -- "$cur")); }
_sherd_paths() {  # -d for folders; -f for files and folders; else files that end with each word
  local IFS=$'\n' ending
  compopt -o filenames 2>/dev/null
  case $1 in
    -f) COMPREPLY+=($(compgen -f -- "$cur")) ;;
    *) COMPREPLY+=($(compgen -d -- "$cur")) ;;
  esac
  [[ $1 != -* ]] || return 0
  for ending in "$@"; do COMPREPLY+=($(compgen -f -X "!*$ending" -- "$cur")); done
}
_sherd_keys() {
  compopt -o nospace 2>/dev/null
  COMPREPLY+=($(compgen -S = -W "$_sherd_all_keys" -- "$cur"))
}
)";

constexpr std::string_view kMain = R"(
_sherd() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} key='' at=1 i
  COMPREPLY=()
  if [[ ${COMP_WORDS[1]} == launch ]]; then
    for ((i = 2; i < COMP_CWORD; ++i)); do
      if [[ ${COMP_WORDS[i]} == -- ]]; then at=$((i + 1)); break; fi
    done
  fi
  if ((COMP_CWORD == at)); then
    _sherd_words "$_sherd_commands"
    ((at > 1)) || _sherd_words '--help --version'
    return
  fi
  if [[ $cur == = ]]; then
    key=$prev cur=''
  elif [[ $prev == = ]] && ((COMP_CWORD > 2)); then
    key=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  case $key in
    '') ;;
    -*) prev=$key ;;
    *) _sherd_values "$key"; return ;;
  esac
  _sherd_arguments "${COMP_WORDS[at]}"
}
complete -F _sherd sherd
)";

std::string action_of(const OptionRow& row) {
  switch (row.kind) {
    case ValueKind::kRecipe:
      return "_sherd_paths .yaml .yml";
    case ValueKind::kFolder:
      return "_sherd_paths -d";
    case ValueKind::kFile:
    case ValueKind::kModel:
      return "_sherd_paths -f";
    case ValueKind::kSetting:
      return "_sherd_keys";
    case ValueKind::kChoice:
      return fmt::format("_sherd_words '{}'", words_of(row.choices));
    case ValueKind::kNone:
    case ValueKind::kOther:
    case ValueKind::kCommand:
      break;
  }
  return ":";
}

std::string arguments_of(const CommandRow& command) {
  std::vector<std::string> names;
  std::string out = fmt::format("    {})\n      case $prev in\n", command.name);
  for (const OptionRow& row : command.options) {
    names.insert(names.end(), row.names.begin(), row.names.end());
    if (row.kind == ValueKind::kNone) continue;
    out += fmt::format("        {}) {}; return ;;\n", words_of(row.names, " | "), action_of(row));
  }
  out += "      esac\n";
  out += fmt::format("      if [[ $cur == -* ]]; then _sherd_words '{}'; return; fi\n",
                     words_of(names));
  if (!command.positionals.empty()) {
    out += fmt::format("      {}\n", action_of(command.positionals[0]));
  }
  return out + "      ;;\n";
}

}  // namespace

std::string bash_completion(const CommandTable& commands, const KeyTable& keys) {
  std::string out(kBegin), names, all_keys, values;
  for (const CommandRow& command : commands) names += (names.empty() ? "" : " ") + command.name;
  for (const KeyRow& key : keys) {
    all_keys += fmt::format("{}{}", all_keys.empty() ? "" : "\n", key.key);
    if (key.values.empty()) continue;
    values += fmt::format("    {}) _sherd_words '{}' ;;\n", key.key, words_of(key.values));
  }
  out += fmt::format("_sherd_commands='{}'\n_sherd_all_keys='{}'\n", names, all_keys);
  out += "_sherd_values() {  # of a key\n  case $1 in\n" + values + "  esac\n}\n";
  out += "_sherd_arguments() {  # of a command\n  case $1 in\n";
  for (const CommandRow& command : commands) out += arguments_of(command);
  return out + "  esac\n}\n" + std::string(kMain);
}

}  // namespace sherd::main
