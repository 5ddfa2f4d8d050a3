/// `sherd data`: what a recipe's data look like; engine/run/show_data.h.
#pragma once

#include <CLI/CLI.hpp>

#include "engine/recipe/recipe.h"
#include "engine/run/show_data.h"

namespace sherd::main {

class DataCommand {
 public:
  /// `command` reads its recipe into `request`, which must outlive this.
  DataCommand(CLI::App& command, const engine::RecipeRequest& request);
  void run() const;

 private:
  const engine::RecipeRequest& request_;
  engine::ShowData show_;
};

}  // namespace sherd::main
