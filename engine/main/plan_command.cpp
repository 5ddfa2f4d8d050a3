#include "engine/main/plan_command.h"

#include <fmt/format.h>

#include "core/error.h"
#include "engine/byte_size.h"
#include "engine/plan_report.h"

namespace sherd::main {

PlanCommand::PlanCommand(CLI::App& command, const engine::RecipeRequest& request)
    : request_(request) {
  command
      .add_option("--device-memory", device_memory_,
                  "Memory of one rank's device, e.g. 80GiB; else the recipe's, else this machine's")
      ->type_name("SIZE");
  command.add_flag("--json", json_, "One JSON object instead of tables");
}

void PlanCommand::run() const {
  const engine::ResolvedRecipe recipe = engine::resolve_recipe(request_);
  std::optional<std::int64_t> device_memory;
  if (!device_memory_.empty()) {
    try {
      device_memory = engine::parse_bytes(device_memory_);
    } catch (const UsageError& error) {
      throw UsageError("--device-memory: {}", error.what());
    }
  }
  const auto report =
      engine::plan_report(recipe, engine::device_limit(recipe.values, device_memory));
  fmt::print("{}", json_ ? engine::plan_json(report) : engine::plan_text(report));
}

}  // namespace sherd::main
