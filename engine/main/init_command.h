/// `sherd init`: writes a first recipe.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace sherd::main {

class InitCommand {
 public:
  explicit InitCommand(CLI::App& command);
  /// Errors   UsageError if the recipe's file exists or can't be written; those of starter_recipe.
  void run() const;

 private:
  std::string texts_, recipe_ = "recipe.yaml", format_ = "bytes";
};

}  // namespace sherd::main
