#include "engine/inference/evaluate.h"

#include "engine/data/dataset.h"
#include "engine/inference/trained_model.h"
#include "engine/inference/with_weights.h"
#include "engine/launch/device.h"
#include "engine/train/from_recipe.h"

namespace sherd::engine {

EvaluationResult evaluate_checkpoint(const TrainedModelRequest& request) {
  const TrainedModel trained = trained_model(request);
  data::DataOptions data = data_options(trained.recipe);
  data.only_validate = true;
  data.vocabulary = trained.vocabulary;
  const data::Batcher batcher(data::open_dataset(data), batch_shape(trained.recipe));
  if (batcher.num_validation_windows() == 0) {
    throw DataError("{}: nothing to validate with; give text with --set data.validation_path=...",
                    data.path);
  }
  EvaluationResult result;
  const auto machine = request.machine ? request.machine : choose_machine(trained.recipe);
  with_weights(trained, machine, [&](sharding::Rank& rank, ShardedModel& model) {
    Evaluation evaluation(trained.options, model, batcher, trained.batch_size);
    const EvaluationResult of_rank = evaluation.run(0);
    if (rank.rank == 0) result = of_rank;
  });
  if (result.stop != StopRequest::kNone) throw_stopped(result.stop, "during the evaluation");
  return result;
}

}  // namespace sherd::engine
