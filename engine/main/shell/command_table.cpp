#include "engine/main/shell/command_table.h"

#include <variant>

#include "engine/recipe/fields.h"

namespace sherd::main {
namespace {

std::vector<std::string> choices_in(const std::string& value) {
  const std::size_t open = value.find('{');
  if (open == value.npos || !value.ends_with('}')) return {};
  std::vector<std::string> choices(1);
  for (const char c : value.substr(open + 1, value.size() - open - 2)) {
    if (c == ',') {
      choices.emplace_back();
    } else {
      choices.back() += c;
    }
  }
  return choices;
}

ValueKind kind_of(const std::string& value) {
  if (value.find('{') != value.npos) return ValueKind::kChoice;
  if (value == "KEY=VALUE") return ValueKind::kSetting;
  if (value == "RECIPE") return ValueKind::kRecipe;
  if (value == "FOLDER") return ValueKind::kFolder;
  if (value == "COMMAND") return ValueKind::kCommand;
  if (value == "CKPT" || value == "MODEL" || value == "RUN") return ValueKind::kModel;
  if (value.starts_with("FILE") || value == "TEXTS") return ValueKind::kFile;
  return ValueKind::kOther;
}

// What CLI11 adds to a type, such as "INT in [1 - 8]", isn't part of the value's name.
std::string name_of_value(const std::string& type) {
  const std::size_t end = type.find_first_of(": ");
  return end == type.npos ? type : type.substr(0, end);
}

OptionRow row_of(const CLI::Option& option) {
  OptionRow row{.names = {}, .value = {}, .help = option.get_description()};
  for (const std::string& name : option.get_snames()) row.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) row.names.push_back("--" + name);
  if (row.names.empty()) row.names.push_back(option.get_name());
  row.is_required = option.get_required();
  row.may_repeat = option.get_items_expected_max() > 1;
  if (option.get_items_expected_max() == 0) return row;
  const std::string type = option.get_type_name();
  row.kind = kind_of(type);
  row.choices = choices_in(type);
  row.value = name_of_value(type);
  return row;
}

}  // namespace

std::vector<CommandRow> command_table(const CLI::App& program) {
  std::vector<CommandRow> table;
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    CommandRow row{command->get_name(), command->get_description(), {}, {}};
    for (const CLI::Option* option : command->get_options()) {
      (option->get_positional() ? row.positionals : row.options).push_back(row_of(*option));
    }
    table.push_back(std::move(row));
  }
  return table;
}

std::vector<KeyRow> key_table() {
  std::vector<KeyRow> table;
  for (const engine::Field& field : engine::recipe_fields()) {
    KeyRow row{field.key, {field.choices.begin(), field.choices.end()}};
    if (std::holds_alternative<engine::Member<bool>>(field.slot)) row.values = {"true", "false"};
    table.push_back(std::move(row));
  }
  return table;
}

}  // namespace sherd::main
