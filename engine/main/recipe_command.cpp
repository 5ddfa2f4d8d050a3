#include <fmt/format.h>

#include "core/error.h"
#include "engine/main/command_line.h"
#include "engine/main/commands.h"
#include "engine/recipe/text.h"

namespace sherd::main {
namespace {

// `sherd recipe`: a resolved recipe, or all possible keys.
class RecipeCommand {
 public:
  explicit RecipeCommand(CLI::App& command) {
    add_recipe(command, request_);
    command.add_flag("--help-fields", help_fields_, "Print every key a recipe can have");
    command.add_flag("--markdown", markdown_, "Print docs/recipe.md");
  }

  void run() const {
    if (!help_fields_ && !markdown_ && request_.path.empty()) {
      throw UsageError("sherd recipe: expected a RECIPE, --help-fields or --markdown.");
    }
    fmt::print("{}", help_fields_ ? engine::recipe_help()
                     : markdown_  ? engine::recipe_markdown()
                                  : engine::resolve_recipe(request_).yaml());
  }

 private:
  engine::RecipeRequest request_;
  bool help_fields_ = false, markdown_ = false;
};

}  // namespace

Command recipe_command(CLI::App& program) {
  return make_command<RecipeCommand>(program, "recipe",
                                     "Print a recipe with every value and its origin");
}

}  // namespace sherd::main
