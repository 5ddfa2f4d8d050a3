/// The command line as data: what `sherd completion` and `sherd man` write is made from it.
///
/// The commands themselves (engine/main/*_command.cpp) are the only source: names, help and the
/// names of values are read from CLI11.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::main {

/// What a value is, by its name in `--help`. Shells complete it accordingly.
enum class ValueKind {
  kNone,     ///< a flag
  kOther,    ///< a number or a text
  kFile,     ///< FILE, FILE.jsonl, TEXTS: any file
  kFolder,   ///< FOLDER
  kModel,    ///< CKPT, MODEL, RUN: files and folders
  kRecipe,   ///< RECIPE: .yaml and .yml files
  kSetting,  ///< KEY=VALUE: a key of recipes and its value
  kChoice,   ///< one of `choices`
  kCommand,  ///< COMMAND: another command of this program, after --
};

struct OptionRow {
  std::vector<std::string> names;  ///< "--ranks", "-n"; of a positional, its name alone
  std::string value;               ///< its name in --help, such as "KEY=VALUE"; empty: a flag
  std::string help;
  ValueKind kind = ValueKind::kNone;
  std::vector<std::string> choices{};  ///< kChoice
  bool is_required = false;
  bool may_repeat = false;
};

struct CommandRow {
  std::string name, help;
  std::vector<OptionRow> options;  ///< in the order of --help, which is the first
  std::vector<OptionRow> positionals;
};

/// All commands of `program`, in the order of `sherd --help`.
std::vector<CommandRow> command_table(const CLI::App& program);

/// A recipe key, and its values if it has only some: choices, or true and false.
struct KeyRow {
  std::string_view key;
  std::vector<std::string> values;
};
std::vector<KeyRow> key_table();

}  // namespace sherd::main
