/// What a person wrote, before anyone asks what it means: YAML turned into a list of assignments.
///
/// Known here: that a recipe is blocks of keys, and which keys exist. Types and ranges come later
/// (`engine/recipe/values.h`). This is the one place that knows yaml-cpp.
///
/// Errors   UsageError: a file that can't be read or isn't YAML, a --set that isn't one. What is
///          wrong with single keys (unknown, repeated, a block where a value belongs) is collected.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/recipe/recipe.h"

namespace sherd::engine {

struct RawValue {
  enum class Kind { kNothing, kPlain, kQuoted, kList, kBlock };
  Kind kind = Kind::kNothing;
  std::string text{};             ///< kPlain, kQuoted
  std::vector<RawValue> items{};  ///< kList

  std::string describe() const;  ///< for errors: 4, "rmsnrom", a list, a block of keys, empty
};

struct Assignment {
  std::string key;
  RawValue value;
  Origin origin;
  std::string where;  ///< how an error begins: "recipes/tiny.yaml:14" or "--set optimizer.lr=x"
};

/// The file's bytes.
std::string read_recipe_file(const std::string& path);
struct ParsedRecipe {
  std::vector<Assignment> assignments;
  std::vector<std::string> problems;  ///< each beginning with file:line
};
ParsedRecipe parse_recipe(const std::string& path, const std::string& text);
/// "key=value". The value of a text key is taken as it stands unless it begins with a quote, so
/// that globs and file names need no second quoting; any other value is a YAML scalar or flow list.
Assignment parse_set(const std::string& set);
RawValue parse_value(const std::string& yaml, const std::string& where);

}  // namespace sherd::engine
