/// `sherd plan`: what a recipe needs, before anything is allocated.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "engine/recipe/recipe.h"

namespace sherd::main {

class PlanCommand {
 public:
  /// `command` reads its recipe into `request`, which must outlive this.
  PlanCommand(CLI::App& command, const engine::RecipeRequest& request);
  void run() const;

 private:
  const engine::RecipeRequest& request_;
  std::optional<std::string> device_memory_;
  std::string html_;
  int ranks_per_machine_ = 0;
  bool json_ = false, parameters_ = false, ledger_ = false, paper_convention_ = false;
};

}  // namespace sherd::main
