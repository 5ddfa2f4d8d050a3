// Whether the layers can be divided among a pipeline's ranks, and the schedule executed.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/error.h"
#include "engine/recipe/resolution.h"
#include "engine/schedule/balance.h"
#include "engine/schedule/generate.h"

namespace sherd::engine {
namespace {

constexpr std::string_view kDegree = "parallelism.pipeline_parallel_degree";
constexpr std::string_view kSchedule = "parallelism.pipeline_schedule";
constexpr std::string_view kChunks = "parallelism.pipeline_chunks_per_rank";
constexpr std::string_view kLayers = "parallelism.pipeline_layers_per_chunk";

// The schedule itself reports what it doesn't support.
bool check_schedule_of(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const auto& degrees = values.parallelism;
  try {
    schedule::check(
        {.order = degrees.pipeline_schedule,
         .num_ranks = static_cast<int>(degrees.pipeline_parallel_degree),
         .chunks_per_rank = static_cast<int>(degrees.pipeline_chunks_per_rank),
         .num_micro_batches = static_cast<int>(values.training.gradient_accumulation_steps)});
    return true;
  } catch (const UsageError& error) {
    recipe.refuse({kSchedule, kDegree, kChunks, "training.gradient_accumulation_steps"},
                  "{}: {} (A step's micro-batches are training.gradient_accumulation_steps.)",
                  kSchedule, error.what());
  }
  return false;
}

void check_layers_of_chunks(Resolution& recipe, std::int64_t num_chunks) {
  const Recipe& values = recipe.values();
  const std::vector<double>& layers = values.parallelism.pipeline_layers_per_chunk;
  if (layers.empty()) return;
  if (std::ranges::any_of(layers, [](double count) { return count != std::floor(count); })) {
    return recipe.refuse({kLayers}, "{}: layers are whole.", kLayers);
  }
  try {
    schedule::check_layers_per_chunk({layers.begin(), layers.end()},
                                     static_cast<int>(values.model.num_layers),
                                     static_cast<int>(num_chunks));
  } catch (const UsageError& error) {
    recipe.refuse({kLayers, kDegree, kChunks}, "{}: {}", kLayers, error.what());
  }
}

}  // namespace

void check_pipeline(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const auto& degrees = values.parallelism;
  if (degrees.pipeline_parallel_degree <= 1) return;
  if (!check_schedule_of(recipe)) return;
  const std::int64_t num_chunks =
      degrees.pipeline_parallel_degree * degrees.pipeline_chunks_per_rank;
  if (num_chunks > values.model.num_layers) {
    return recipe.refuse(
        {kDegree, kChunks, "model.num_layers"},
        "{} is {} with {} part{} of the model each, but the model has {} layer{}, and every part "
        "needs one. The most: {}: {}.",
        kDegree, degrees.pipeline_parallel_degree, degrees.pipeline_chunks_per_rank,
        degrees.pipeline_chunks_per_rank == 1 ? "" : "s", values.model.num_layers,
        values.model.num_layers == 1 ? "" : "s", kDegree,
        std::max<std::int64_t>(1, values.model.num_layers / degrees.pipeline_chunks_per_rank));
  }
  check_layers_of_chunks(recipe, num_chunks);
}

}  // namespace sherd::engine
