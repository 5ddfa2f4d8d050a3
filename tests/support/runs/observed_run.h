/// What can be seen of a run: everything that it prints, writes and computes, times apart.
#pragma once

#include <string>

#include "tests/support/random/random_recipe.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {

struct ObservedRun {
  std::string
      refusal{};  ///< not empty: the recipe, or the run before it began, was refused in one line
  std::string seen{};   ///< the rest: output with its plan, metrics, weights, names of files
  std::string notes{};  ///< lines about keys without effect
};

/// Trains in a folder below `folder` that is gone afterwards. Neither recipe.yaml nor a value printed as
/// it was given counts as seen.
ObservedRun observe(const test::TempFolder& folder, const Settings& settings);

/// What `sherd plan --json` says of it; "" if the recipe is refused.
std::string planned(const Settings& settings);

}  // namespace sherd::testing
