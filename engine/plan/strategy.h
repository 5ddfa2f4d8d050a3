/// Values of a recipe that a plan may change: they affect a step's memory and time, and results
/// only by rounding. Types, sizes and the global batch aren't among them.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/recipe/recipe.h"

namespace sherd::engine {

/// How a step's sequences are divided; the product is the global batch.
struct BatchCut {
  std::int64_t ranks = 1, micro_batch = 1, accumulation = 1;
  bool operator==(const BatchCut&) const = default;
};
BatchCut batch_cut_of(const Recipe& recipe);

/// Values to set. Empty ones stay unchanged, or follow from the others.
struct Strategy {
  std::optional<std::int64_t> stage{};
  std::optional<std::int64_t> prefetch_depth{};
  std::optional<bool> reshard_after_forward{};
  std::optional<GradSync> grad_sync{};
  std::optional<Recompute> recompute{};
  std::optional<std::int64_t> staging_mib{};
  std::optional<OffloadDevice> offload_optimizer{}, offload_param{};
  std::optional<std::int64_t> ranks{}, micro_batch{}, accumulation{};

  /// This change combined with `more`.
  Strategy with(const Strategy& more) const;
};

/// A recipe under a strategy.
struct Variant {
  ResolvedRecipe recipe;
  std::vector<std::pair<std::string, std::string>> settings;  ///< key and value, as for --set
};

/// Nothing if the recipe's rules refuse it.
std::optional<Variant> variant_of(const ResolvedRecipe& recipe, const Strategy& strategy);

/// The same with the batch divided as in `wanted`. Sets as few of its keys as possible; the others
/// follow.
std::optional<Variant> variant_of(const ResolvedRecipe& recipe, Strategy strategy,
                                  const BatchCut& wanted);

}  // namespace sherd::engine
