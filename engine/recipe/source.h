/// What the user wrote, before it is interpreted: YAML as a list of assignments.
///
/// This code knows that a recipe consists of blocks of keys, and which keys exist. Types and ranges
/// are checked later (`engine/recipe/values.h`). Only this code uses yaml-cpp.
///
/// Errors   UsageError: a file that can't be read or isn't YAML, an invalid --set. Problems of
///          single keys (unknown, repeated, a block instead of a value) are collected.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/recipe/recipe.h"

namespace sherd::engine {

struct RawValue {
  enum class Kind { kNothing, kPlain, kQuoted, kList, kBlock };
  Kind kind = Kind::kNothing;
  std::string text{};               ///< kPlain, kQuoted
  std::vector<RawValue> items{};    ///< kList; kBlock: the values of `keys`
  std::vector<std::string> keys{};  ///< kBlock

  std::string describe() const;  ///< for errors: 4, "rmsnrom", a list, a block of keys, empty
};

struct Assignment {
  std::string key;
  RawValue value;
  Origin origin;
  std::string where;  ///< how an error begins: "recipes/tiny.yaml:14" or "--set optimizer.lr=x"
};

/// The file's bytes.
std::string read_recipe_file(const std::string& path, std::string_view what = "recipe");
struct ParsedRecipe {
  std::vector<Assignment> assignments;
  std::vector<std::string> problems;  ///< each beginning with file:line
};
ParsedRecipe parse_recipe(const std::string& path, const std::string& text);
/// Parses "key=value". The value of a text key is used unchanged unless it begins with a quote, so
/// globs and file names need no second quoting. Any other value is a YAML scalar or flow list.
Assignment parse_set(const std::string& set);
RawValue parse_value(const std::string& yaml, const std::string& where);

}  // namespace sherd::engine
