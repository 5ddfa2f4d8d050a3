/// Measures the best layouts of a search on this machine's CPUs: some steps of each, taking turns,
/// so that a busy machine disturbs all alike. Tokens are made up; no data is read and nothing is
/// saved. Only keys that a search may change differ (engine/plan/search), so mathematics stay.
///
/// Errors   UsageError: a recipe for GPUs; one whose steps need more than tokens (documents that are
///          kept apart, preferences, a teacher) or state on disk.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/plan/search/search.h"

namespace sherd::engine {

struct TuneRequest {
  SearchRequest search{};
  int rounds = 3, steps = 4;  ///< steps of a layout in each round; one more begins it
  std::function<void(const std::string&)> on_message{};
};

struct TunedLayout {
  FoundLayout layout;
  std::vector<double> seconds{};  ///< of each measured step

  double median() const;
};

struct TuneResult {
  std::vector<TunedLayout> layouts;  ///< the recipe as it is first, if it fits; else the best ones
  std::string rates;

  const TunedLayout& best() const;
};

TuneResult tune(const ResolvedRecipe& recipe, const TuneRequest& request, const StepRates& rates);

/// Seconds of `steps` steps after the first one. `recipe` runs on CPUs.
std::vector<double> measured_steps(const ResolvedRecipe& recipe, int steps);

std::string tune_text(const TuneResult& result);
/// The best layout as a recipe, which begins with what was measured where.
std::string tuned_recipe(const TuneResult& result, const std::string& source);

}  // namespace sherd::engine
