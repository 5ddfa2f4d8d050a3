// What a rank sends in a step (TrainingStep::traffic).

#include <algorithm>

#include "engine/train/pipeline/pipeline.h"
#include "engine/train/sharding_plan.h"
#include "engine/train/training_step.h"

namespace sherd::engine {
namespace {

// Without a pipeline each micro-step uses units in the same order, which many of them make no longer to
// count.
sharding::Traffic parameter_traffic(const TrainingOptions& options, const RankPipeline& pipeline,
                                    const sharding::ShardingPlan& plan) {
  if (pipeline.whole()) {
    std::vector<int> uses = forward_uses(pipeline.chunks[0], options.model, false);
    const std::vector<int> backward = backward_uses(pipeline.chunks[0], options.model);
    uses.insert(uses.end(), backward.begin(), backward.end());
    return sharding::parameter_traffic(plan.units, options.gather, uses, options.num_micro_steps);
  }
  const std::vector<int> numbers = units_of(pipeline, options.model);
  std::vector<int> uses = step_uses(pipeline, options.model);
  for (int& unit : uses) {
    unit = static_cast<int>(std::ranges::lower_bound(numbers, unit) - numbers.begin());
  }
  return sharding::parameter_traffic(plan.units, options.gather, uses, 1);
}

}  // namespace

sharding::Traffic TrainingStep::traffic(const TrainingOptions& options, const sharding::Mesh& mesh,
                                        int rank) {
  const sharding::ShardingPlan plan = sharding_plan(options, mesh, rank);
  const RankPipeline pipeline = rank_pipeline(options, mesh, rank);
  sharding::Traffic traffic = parameter_traffic(options, pipeline, plan);
  traffic.add(sharding::gradient_traffic(plan.units, options.num_micro_steps));
  traffic.add(optim::descriptor_of(options.optimizer.type).traffic(options.optimizer, plan, rank));
  traffic.add(Pipeline::traffic(options, pipeline, mesh, rank));
  traffic.add(sharding::Agreement<RankStats>::traffic(kStepStats, mesh.world_size()));
  return traffic;
}

}  // namespace sherd::engine
