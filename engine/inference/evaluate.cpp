#include "engine/inference/evaluate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "checkpoint/store/committed.h"
#include "engine/data/dataset.h"
#include "engine/inference/trained_model.h"
#include "engine/inference/with_weights.h"
#include "engine/launch/device.h"
#include "engine/launch/stop_signals.h"
#include "engine/saving/resume_check.h"
#include "engine/train/data_sources.h"
#include "engine/train/from_recipe.h"

namespace sherd::engine {
namespace {

// Where the text is to be the run's own.
bool has_other_data(const TrainedModel& trained, const TrainedModelRequest& request,
                    const data::Batcher& batcher) {
  const bool asks_for_others = std::ranges::any_of(request.sets, [](const std::string& set) {
    return set.starts_with("data.") || set.starts_with("training.");
  });
  if (!trained.checkpoint || asks_for_others || !trained.recipe.data.validation_path.empty() ||
      !trained.recipe.data.validation_sets.empty()) {
    return false;
  }
  // What is held out doesn't depend on the stages' shapes, but their fingerprints do.
  if (has_shapes(trained.recipe)) return false;
  return is_of_other_data(*trained.checkpoint->manifest().global, batcher.fingerprints());
}

}  // namespace

double TextLoss::perplexity() const {
  return std::exp(loss);
}

std::optional<double> TextLoss::bits_per_byte() const {
  return main_set.bits_per_byte();
}

TextLoss evaluate_checkpoint(const TrainedModelRequest& request) {
  const TrainedModel trained = trained_model(request);
  if (trained.options.preference.has_reference()) {
    throw UsageError(
        "preference.loss of this run compares with weights that it began with, which aren't here; "
        "its metrics.jsonl has its evaluations.{}",
        trained.options.preference.has_pairs()
            ? " --set preference.loss=simpo compares the answers without them."
            : "");
  }
  data::BatchSources sources =
      open_sources(trained.recipe, {.only_validate = true, .vocabulary = trained.vocabulary});
  for (data::ValidationSource& source : sources.validation) source.num_batches = 0;
  const data::Batcher batcher(std::move(sources), batch_shape(trained.recipe));
  if (batcher.num_validation_sets() == 0) {
    throw DataError("{}: nothing to validate with; give text with --set data.validation_path=...",
                    trained.recipe.data.path);
  }
  const auto tasks = open_tasks(trained.recipe, batcher.shape().seq_length);
  EvaluationResult result;
  const auto machine = machine_of(request, trained);
  const int first = machine->ranks_here(static_cast<int>(trained.recipe.world_size())).first;
  with_weights(trained, machine, [&](sharding::Rank& rank, ShardedModel& model) {
    Evaluation evaluation(trained.options, model, batcher, trained.batch_size);
    EvaluationResult of_rank = evaluation.run(0, stop_request);
    for (std::size_t i = 0; tasks && i < tasks->size(); ++i) {
      if (of_rank.stop != StopRequest::kNone) break;
      of_rank.tasks.push_back(evaluation.score((*tasks)[i], stop_request, of_rank.stop));
    }
    if (rank.rank == first) result = of_rank;
  });
  if (result.stop != StopRequest::kNone) throw_stopped(result.stop, "during the evaluation");
  const auto main = static_cast<std::size_t>(batcher.main_validation());
  return {result, result.sets.at(main), has_other_data(trained, request, batcher)};
}

}  // namespace sherd::engine
