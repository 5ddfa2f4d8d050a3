/// Changes to a recipe that doesn't fit, and limits of one that fits. Every answer was planned: it
/// is the recipe under another strategy (strategy.h), resolved by all rules. Proposals change
/// results by no more than rounding, so never types, sizes or the global batch.
///
/// Changes are ranked by what a step is expected to cost (step_cost.h); more ranks always come
/// last.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/memory_report.h"

namespace sherd::engine {

/// A recipe with other settings, planned.
struct Change {
  std::vector<std::pair<std::string, std::string>> settings;  ///< key and value
  std::vector<std::string> arguments;  ///< to add to the command line, "--set", "key=value", ...
  std::int64_t needed_bytes = 0;       ///< compared with the same limit
  double flops_ratio = 1.0;            ///< of a step, all ranks together, to the recipe's own
  double sent_ratio = 1.0;             ///< 0 if the recipe's own step sends nothing
  double cost = 0.0;                   ///< step_cost(...).total, relative to the recipe's own

  std::string summary() const;  ///< "training.micro_batch_size: 4 with zero_optimization.stage: 3"
  std::string command() const;  ///< "--set training.micro_batch_size=4 --set ..."
};

/// The cheapest changes that fit: single changes; if none fits, pairs; if none fits, all of them at
/// once. Empty if nothing fits. At most five, the cheapest first.
std::vector<Change> cheapest_changes(const ResolvedRecipe& recipe, const DeviceLimit& limit);

/// The limit of one number.
struct ValueLimit {
  std::int64_t value = 0;
  Change change;
};
/// The largest micro-batch that fits on the same ranks. If the global batch is set, it stays the
/// same (the micro-batch divides it); otherwise the number of micro-steps does. None if not even
/// one sequence fits.
std::optional<ValueLimit> largest_micro_batch(const ResolvedRecipe& recipe,
                                              const DeviceLimit& limit);
/// The smallest world size that fits with the same global batch and micro-batch, or none.
std::optional<ValueLimit> smallest_world(const ResolvedRecipe& recipe, const DeviceLimit& limit);

/// The recipe at every possible stage, in order.
std::vector<std::pair<int, ResolvedRecipe>> at_every_stage(const ResolvedRecipe& recipe);

}  // namespace sherd::engine
