#include "engine/plan/strategy.h"

#include "engine/recipe/fields.h"
#include "engine/recipe/values.h"

namespace sherd::engine {
namespace {

/// Calls `visit(key, choice, member)` for each value of a strategy and its member of a recipe.
template <class Visit>
void for_each_choice(const Strategy& strategy, Recipe& recipe, const Visit& visit) {
  Recipe::ZeroOptimization& zero = recipe.zero_optimization;
  Recipe::Training& training = recipe.training;
  visit("zero_optimization.stage", strategy.stage, zero.stage);
  visit("zero_optimization.prefetch_depth", strategy.prefetch_depth, zero.prefetch_depth);
  visit("zero_optimization.reshard_after_forward", strategy.reshard_after_forward,
        zero.reshard_after_forward);
  visit("zero_optimization.grad_sync", strategy.grad_sync, zero.grad_sync);
  visit("activation_checkpointing.mode", strategy.recompute, recipe.activation_checkpointing.mode);
  visit("checkpoint.staging_mib", strategy.staging_mib, recipe.checkpoint.staging_mib);
  visit("zero_optimization.offload_optimizer", strategy.offload_optimizer, zero.offload_optimizer);
  visit("zero_optimization.offload_param", strategy.offload_param, zero.offload_param);
  std::optional<std::int64_t> shards = strategy.ranks;  // of each replica
  if (shards) *shards /= recipe.parallelism.data_parallel_replicate_degree;
  visit("parallelism.data_parallel_shard_degree", shards,
        recipe.parallelism.data_parallel_shard_degree);
  visit("training.micro_batch_size", strategy.micro_batch, training.micro_batch_size);
  visit("training.gradient_accumulation_steps", strategy.accumulation,
        training.gradient_accumulation_steps);
}

}  // namespace

BatchCut batch_cut_of(const Recipe& recipe) {
  return {recipe.data_degree(), recipe.training.micro_batch_size,
          recipe.training.gradient_accumulation_steps};
}

Strategy Strategy::with(const Strategy& more) const {
  Strategy both = *this;
  const auto take = [](auto& mine, const auto& other) {
    if (other) mine = other;
  };
  take(both.stage, more.stage);
  take(both.prefetch_depth, more.prefetch_depth);
  take(both.reshard_after_forward, more.reshard_after_forward);
  take(both.grad_sync, more.grad_sync);
  take(both.recompute, more.recompute);
  take(both.staging_mib, more.staging_mib);
  take(both.offload_optimizer, more.offload_optimizer);
  take(both.offload_param, more.offload_param);
  take(both.ranks, more.ranks);
  take(both.micro_batch, more.micro_batch);
  take(both.accumulation, more.accumulation);
  return both;
}

std::optional<Variant> variant_of(const ResolvedRecipe& recipe, const Strategy& strategy) {
  const std::int64_t replicas = recipe.values.parallelism.data_parallel_replicate_degree;
  if (strategy.ranks.value_or(replicas) % replicas != 0) return std::nullopt;
  std::vector<std::string_view> keys;
  Recipe read_only = recipe.values;
  for_each_choice(strategy, read_only, [&](const char* key, const auto& choice, auto&) {
    if (choice) keys.emplace_back(key);
  });
  auto changed = with_changes(recipe, keys, [&](Recipe& values) {
    for_each_choice(strategy, values, [](const char*, const auto& choice, auto& member) {
      if (choice) member = *choice;
    });
  });
  if (!changed) return std::nullopt;
  Variant variant{std::move(*changed), {}};
  for (const std::string_view key : keys) {
    const Field& field = recipe_fields()[static_cast<std::size_t>(field_index(key))];
    variant.settings.emplace_back(key, format_value(field, variant.recipe.values));
  }
  return variant;
}

std::optional<Variant> variant_of(const ResolvedRecipe& recipe, Strategy strategy,
                                  const BatchCut& wanted) {
  const BatchCut own = batch_cut_of(recipe.values);
  if (wanted.ranks != own.ranks) strategy.ranks = wanted.ranks;
  const std::optional<std::int64_t> micro = wanted.micro_batch, accumulation = wanted.accumulation;
  std::vector<Strategy> ways = {strategy};
  if (wanted != own) {
    ways.push_back(strategy.with({.micro_batch = micro}));
    ways.push_back(strategy.with({.accumulation = accumulation}));
    ways.push_back(strategy.with({.micro_batch = micro, .accumulation = accumulation}));
  }
  for (const Strategy& way : ways) {
    auto variant = variant_of(recipe, way);
    if (variant && batch_cut_of(variant->recipe.values) == wanted) return variant;
  }
  return std::nullopt;
}

}  // namespace sherd::engine
