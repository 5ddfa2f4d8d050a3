// Rules of replicas that train apart (block `diloco`).
#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/model/adapter.h"
#include "engine/model/parameters.h"
#include "engine/recipe/resolution.h"

namespace sherd::engine {
namespace {

constexpr std::string_view kSyncEvery = "diloco.sync_every";
constexpr std::string_view kFragments = "diloco.num_fragments";
constexpr std::string_view kDelay = "diloco.fragment_sync_delay";

std::int64_t num_trained_units(const Recipe& recipe) {
  const model::ModelShape shape = shape_of(recipe);
  return std::ranges::count_if(model::parameter_table(shape), [&](const UnitSpec& unit) {
    return std::ranges::any_of(unit.parameters, [&](const ParameterSpec& parameter) {
      return model::is_trained(shape, parameter.name);
    });
  });
}

void check_fragments(Resolution& recipe) {
  const DilocoKeys& keys = recipe.values().diloco;
  if (keys.sync_every % keys.num_fragments != 0) {
    return recipe.refuse({kFragments, kSyncEvery},
                         "{} is {}, which {} fragments can't divide evenly. {}: {} would work.",
                         kSyncEvery, keys.sync_every, keys.num_fragments, kSyncEvery,
                         (keys.sync_every / keys.num_fragments + 1) * keys.num_fragments);
  }
  const std::int64_t period = keys.sync_every / keys.num_fragments;
  if (keys.fragment_sync_delay >= period) {
    recipe.refuse({kDelay, kSyncEvery},
                  "{} is {}, but the next exchange begins {} steps after one. Use at most {}.",
                  kDelay, keys.fragment_sync_delay, period, period - 1);
  }
  if (const std::int64_t units = num_trained_units(recipe.values()); keys.num_fragments > units) {
    recipe.refuse({kFragments},
                  "{} is {}, but the model has {} units with trained parameters. Use at most {}.",
                  kFragments, keys.num_fragments, units, units);
  }
}

// What all replicas would have to decide together, or would need more state of each.
void check_others(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const Recipe::ZeroOptimization& zero = values.zero_optimization;
  const std::pair<std::string_view, bool> others[] = {
      {"zero_optimization.shard_optimizer_over_replicas", zero.shard_optimizer_over_replicas},
      {"parallelism.batch_groups",
       values.parallelism.batch_groups != values.parallelism.data_parallel_replicate_degree},
      {"zero_optimization.offload_optimizer", zero.offload_optimizer != OffloadDevice::kNone},
      {"zero_optimization.offload_param", zero.offload_param != OffloadDevice::kNone},
      {"moe.num_experts", values.moe.num_experts > 0},
      {"averages.type", values.averages.type != AverageType::kNone},
      {"optimizer.qk_clip_threshold", values.optimizer.qk_clip_threshold > 0.0},
      {"preference.loss", values.preference.active()}};
  for (const auto& [key, is_used] : others) {
    if (!is_used) continue;
    recipe.refuse({kSyncEvery, key},
                  "{} is {}, so replicas train apart, and {} isn't supported with that. Leave out "
                  "one of the two.",
                  kSyncEvery, values.diloco.sync_every, key);
  }
}

}  // namespace

void check_diloco(Resolution& recipe) {
  if (!recipe.values().diloco.active()) return;
  check_fragments(recipe);
  check_others(recipe);
}

}  // namespace sherd::engine
