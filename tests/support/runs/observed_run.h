/// The observable results of a run: everything that it prints, writes and computes, except times.
#pragma once

#include <string>

#include "tests/support/random/random_recipe.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {

struct ObservedRun {
  /// If not empty, the one-line refusal of the recipe, or of the run at its start.
  std::string refusal{};
  std::string seen{};   ///< the rest: output with its plan, metrics, weights, names of files
  std::string notes{};  ///< lines about keys without effect
};

/// Trains in a temporary folder below `folder`. `seen` includes neither recipe.yaml nor values that
/// are printed as given.
ObservedRun observe(const test::TempFolder& folder, const Settings& settings);

/// The output of `sherd plan` and `sherd plan --json`; "" if the recipe is refused.
std::string planned(const Settings& settings);

}  // namespace sherd::testing
