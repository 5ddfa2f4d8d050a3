#include "engine/plan/search/layout_settings.h"

#include <algorithm>

#include "engine/recipe/fields.h"
#include "engine/recipe/offload.h"
#include "engine/recipe/values.h"

namespace sherd::engine {
namespace {

const Field& field_of(std::string_view key) {
  return recipe_fields()[static_cast<std::size_t>(field_index(key))];
}

Recompute mode_of(Again again) {
  switch (again) {
    case Again::kNothing:
    case Again::kAttention:
      return Recompute::kNone;
    case Again::kNormsAndActivations:
      return Recompute::kSelective;
    case Again::kBlocks:
      break;
  }
  return Recompute::kFull;
}

constexpr std::string_view kAccumulation = "training.gradient_accumulation_steps";

// Writes a layout into a recipe's members: calls `visit(key, member, value)` for each.
template <class Visit>
void for_each_value(const Layout& layout, bool offload, Recipe& recipe, const Visit& visit) {
  auto& degrees = recipe.parallelism;
  auto& zero = recipe.zero_optimization;
  visit(key_of(SearchKey::kTensor), degrees.tensor_parallel_degree, layout.tensor);
  visit(key_of(SearchKey::kSequenceParallel), degrees.sequence_parallel, layout.sequence_parallel);
  visit(key_of(SearchKey::kContext), degrees.context_parallel_degree, layout.context);
  visit(key_of(SearchKey::kPipeline), degrees.pipeline_parallel_degree, layout.pipeline);
  if (layout.pipeline > 1) {
    visit(key_of(SearchKey::kSchedule), degrees.pipeline_schedule, layout.order);
    visit(key_of(SearchKey::kChunks), degrees.pipeline_chunks_per_rank, layout.chunks);
  }
  visit(key_of(SearchKey::kShard), degrees.data_parallel_shard_degree, layout.shard);
  visit(key_of(SearchKey::kReplicate), degrees.data_parallel_replicate_degree, layout.replicate);
  visit(key_of(SearchKey::kExpert), degrees.expert_parallel_degree, layout.expert);
  visit(key_of(SearchKey::kStage), zero.stage, std::int64_t{layout.stage});
  visit(key_of(SearchKey::kGradSync), zero.grad_sync,
        layout.reduces_every_micro_step ? GradSync::kEveryMicroStep : GradSync::kBoundary);
  if (layout.stage == 3) {
    visit(key_of(SearchKey::kReshard), zero.reshard_after_forward, layout.reshards);
    visit(key_of(SearchKey::kPrefetchDepth), zero.prefetch_depth, layout.prefetch_depth);
  }
  if (offload) {
    visit(key_of(SearchKey::kOffloadOptimizer), zero.offload_optimizer, offload_device(recipe));
  }
  visit(key_of(SearchKey::kMicroBatch), recipe.training.micro_batch_size, layout.sequences);
  visit(kAccumulation, recipe.training.gradient_accumulation_steps, layout.micro_batches);
  visit(key_of(SearchKey::kRecompute), recipe.activation_checkpointing.mode, mode_of(layout.again));
}

// Those of `keys`, or all.
void write(const Layout& layout, bool offload, Recipe& recipe,
           const std::vector<std::string_view>* keys = nullptr) {
  for_each_value(layout, offload, recipe,
                 [&](std::string_view key, auto& member, const auto& value) {
                   if (keys == nullptr || std::ranges::find(*keys, key) != keys->end()) {
                     member = value;
                   }
                 });
}

std::vector<std::string_view> written_keys() {
  std::vector<std::string_view> keys;
  for (const SearchKey key : all_search_keys()) keys.push_back(key_of(key));
  keys.emplace_back(kAccumulation);
  return keys;
}

// The keys in which the recipe differs from what is wanted.
std::vector<std::string_view> differing(const Recipe& recipe, const Recipe& wanted) {
  std::vector<std::string_view> keys;
  for (const std::string_view key : written_keys()) {
    if (format_value(field_of(key), recipe) != format_value(field_of(key), wanted)) {
      keys.push_back(key);
    }
  }
  return keys;
}

}  // namespace

OffloadDevice offload_device(const Recipe& recipe) {
  return device_traits(recipe).kind == DeviceKind::kCpu ? OffloadDevice::kNvme
                                                        : OffloadDevice::kCpu;
}

std::optional<LayoutSettings> settings_of(const ResolvedRecipe& recipe, const Layout& layout,
                                          bool offload) {
  Recipe wanted = recipe.values;
  write(layout, offload, wanted);
  std::vector<std::string_view> keys = differing(recipe.values, wanted);
  // What usually follows from the other keys is set only if it doesn't.
  std::erase_if(keys, [&](std::string_view key) {
    return key == kAccumulation ||
           (!recipe.origin(key).is_given() &&
            (key == key_of(SearchKey::kGradSync) || key == key_of(SearchKey::kReshard) ||
             key == key_of(SearchKey::kPrefetchDepth)));
  });
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto changed =
        with_changes(recipe, keys, [&](Recipe& values) { write(layout, offload, values, &keys); });
    if (!changed) {
      if (attempt > 0) return std::nullopt;
      // What a file sets may contradict what was left to follow.
      keys = differing(recipe.values, wanted);
      continue;
    }
    const auto missing = differing(changed->values, wanted);
    if (missing.empty()) {
      LayoutSettings result{{}, *changed};
      for (const std::string_view key : keys) {
        result.settings.emplace_back(key, format_value(field_of(key), changed->values));
      }
      return result;
    }
    keys.insert(keys.end(), missing.begin(), missing.end());
    std::ranges::sort(keys);
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  }
  return std::nullopt;
}

std::optional<LayoutSettings> updated_by_cores(const LayoutSettings& settings) {
  const std::string_view key = key_of(SearchKey::kOffloadUpdate);
  const Recipe& own = settings.recipe.values;
  const bool is_open = own.zero_optimization.offload_update == OffloadDevice::kNone;
  if (!is_open || !offload_of(own).on_host) return std::nullopt;
  const auto changed = with_changes(settings.recipe, {key}, [](Recipe& values) {
    values.zero_optimization.offload_update = OffloadDevice::kCpu;
  });
  if (!changed) return std::nullopt;
  LayoutSettings result{settings.settings, *changed};
  result.settings.emplace_back(key, format_value(field_of(key), changed->values));
  return result;
}

}  // namespace sherd::engine
