#include "engine/train/stage_epochs.h"

#include <algorithm>
#include <cmath>

#include "engine/recipe/resolution.h"
#include "engine/train/data_sources.h"

namespace sherd::engine {
namespace {

bool is_in_epochs(const DataStage& stage) {
  return stage.epochs > 0.0;
}

int source_of(const data::Batcher& batches, const std::string& name) {
  for (int i = 0; i < batches.num_sources(); ++i) {
    if (batches.source(i).name == name) return i;
  }
  return 0;  // the only one; the rules have checked it
}

// The fewest sequences that complete the epochs. An epoch isn't rounded up by a factor such as 1.1.
std::int64_t sequences_of(double epochs, std::int64_t in_epoch) {
  const auto size = static_cast<double>(in_epoch);
  auto count = static_cast<std::int64_t>(std::floor(epochs * size));
  while (count > 0 && static_cast<double>(count - 1) / size >= epochs) --count;
  while (static_cast<double>(count) / size < epochs) ++count;
  return count;
}

// Of the last stage that `batches` has.
std::int64_t steps_of_last(const data::Batcher& batches, const DataStage& stage,
                           const std::string& label) {
  const int source = source_of(batches, stage.epochs_of);
  const data::Mixture& mixture = batches.stages().back().mixture;
  const std::int64_t in_block = mixture.counts()[static_cast<std::size_t>(source)];
  if (in_block == 0) {
    throw UsageError("{} counts epochs of \"{}\", but the source's weight in it is 0.", label,
                     batches.source(source).name);
  }
  const std::int64_t rows = batches.shape().global_batch_size();
  const std::int64_t needed = sequences_of(stage.epochs, batches.num_windows(source));
  // Whole blocks first, so that the bounds are near each other.
  std::int64_t low = (needed - 1) / in_block * data::Mixture::kBlock / rows;
  std::int64_t high = (needed / in_block + 1) * data::Mixture::kBlock / rows + 1;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    mixture.count(source, middle * rows) >= needed ? high = middle : low = middle + 1;
  }
  return std::max<std::int64_t>(low, 1);
}

}  // namespace

ResolvedRecipe with_stage_steps(const ResolvedRecipe& recipe) {
  std::vector<DataStage> stages = recipe.values.data.stages;
  if (std::ranges::none_of(stages, is_in_epochs)) return recipe;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (!is_in_epochs(stages[i])) continue;
    DataStage& stage = stages[i];
    ResolvedRecipe until = recipe;
    until.values.data.stages.assign(stages.begin(), stages.begin() + static_cast<long>(i) + 1);
    until.values.data.stages.back().epochs = 0;
    const std::int64_t max_steps = recipe.values.training.max_steps;
    const bool begins = max_steps == 0 || spans_of(until.values).back().first_step < max_steps;
    // A stage after the last step has a length when the run is prolonged.
    stage.steps = begins ? steps_of_last(*open_batches(segments_of(until)).back(), stage,
                                         fmt::format("data.stages[{}]", i))
                         : 1;
    stage.epochs = 0;
    stage.epochs_of.clear();
  }
  return with_changes_or_errors(recipe, recipe.values.run.name, {},
                                [&](Recipe& changed) { changed.data.stages = stages; });
}

}  // namespace sherd::engine
