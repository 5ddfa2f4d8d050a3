/// A sweep: one recipe, trained with every combination of the values that --set lists.
///
///   --set optimizer.lr=1e-3,3e-4 --set optimizer.betas=[0.9,0.95],[0.9,0.99]      four runs
///
/// Commas outside of brackets, braces and quotes separate values. The last key varies fastest. Each
/// run has a folder in the recipe's run.output_dir, named after the keys that vary and their
/// values: `lr=1e-3_betas=0.9-0.95`. sweep.json next to them says what each run came to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/recipe/recipe.h"

namespace sherd::engine {

struct SweepPoint {
  std::string name;               ///< of its folder
  std::vector<std::string> sets;  ///< all of the sweep's, with one value each
};

/// Errors   UsageError: a value is empty or listed twice, a key is given twice, no key has several
///          values, or run.output_dir or run.name has.
std::vector<SweepPoint> sweep_points(const std::vector<std::string>& sets);

struct SweepRun {
  SweepPoint point;
  std::string folder;
  std::optional<int> exit_code{};  ///< none: it hasn't ended
  bool was_done = false;           ///< by an earlier call of the sweep
};

/// The request for the recipe of one run: in its folder, and named like it unless the recipe has a
/// name. `base` is the recipe of any point.
RecipeRequest request_of(const RecipeRequest& sweep, const ResolvedRecipe& base,
                         const SweepPoint& point);

/// Whether the run in `folder` has succeeded according to `json`, the text of sweep.json, with a
/// recipe that trains what `recipe` does.
bool is_done(const std::string& json, const std::string& folder, const ResolvedRecipe& recipe);

/// A table: final and best validation loss, tokens per second, and the run with the best loss.
std::string sweep_text(const std::vector<SweepRun>& runs);
/// The same as a JSON object; and the values of each run.
std::string sweep_json(const std::vector<SweepRun>& runs);

}  // namespace sherd::engine
