/// What a plan may change in a recipe: values that decide where a step's memory and time go and that
/// change no result beyond rounding. Types, sizes and the global batch aren't among them.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/recipe/recipe.h"

namespace sherd::engine {

/// How a step's sequences are cut up; the product is the global batch.
struct BatchCut {
  std::int64_t ranks = 1, micro_batch = 1, accumulation = 1;
  bool operator==(const BatchCut&) const = default;
};
BatchCut batch_cut_of(const Recipe& recipe);

/// Values to set; what is empty stays as it is, or follows from the others.
struct Strategy {
  std::optional<std::int64_t> stage{};
  std::optional<std::int64_t> prefetch_depth{};
  std::optional<bool> reshard_after_forward{};
  std::optional<GradSync> grad_sync{};
  std::optional<Recompute> recompute{};
  std::optional<std::int64_t> staging_mib{};
  std::optional<std::int64_t> ranks{}, micro_batch{}, accumulation{};

  /// This one, and what `more` sets.
  Strategy with(const Strategy& more) const;
};

/// A recipe under a strategy.
struct Variant {
  ResolvedRecipe recipe;
  std::vector<std::pair<std::string, std::string>>
      settings;  ///< key and value, as a person sets them
};

/// Nothing where the recipe's rules refuse it.
std::optional<Variant> variant_of(const ResolvedRecipe& recipe, const Strategy& strategy);

/// The same with the batch cut up as `wanted`, setting the fewest of its keys from which the others
/// follow.
std::optional<Variant> variant_of(const ResolvedRecipe& recipe, Strategy strategy,
                                  const BatchCut& wanted);

}  // namespace sherd::engine
