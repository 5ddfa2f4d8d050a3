// What a rank sends in a step (TrainingStep::traffic).

#include "engine/train/expert_statistics.h"
#include "engine/train/layout/sharding_plan.h"
#include "engine/train/pipeline/pipeline.h"
#include "engine/train/stability_statistics.h"
#include "engine/train/training_step.h"
#include "engine/train/units/model_collectives.h"
#include "sharding/zero/gradient_reduction.h"
#include "sharding/zero/parameter_gather.h"

namespace sherd::engine {
namespace {

// Without a pipeline each micro-step uses units in the same order, which many of them make no
// longer to count.
sharding::Traffic parameter_traffic(const TrainingOptions& options, const RankPipeline& pipeline,
                                    const sharding::ShardingPlan& plan) {
  if (pipeline.whole()) {
    std::vector<UnitId> uses = forward_uses(pipeline.chunks[0], options.model, false);
    const std::vector<UnitId> backward = backward_uses(pipeline.chunks[0], options.model);
    uses.insert(uses.end(), backward.begin(), backward.end());
    return sharding::parameter_traffic(plan.units, options.gather, places_of(uses, plan.units),
                                       options.num_micro_steps);
  }
  const std::vector<UnitId> uses = step_uses(pipeline, options.model);
  return sharding::parameter_traffic(plan.units, options.gather, places_of(uses, plan.units), 1);
}

// As Pipeline::backward does: what stood last is still there for a backward of both halves.
model::PassCounts pass_counts(const TrainingOptions& options, const RankPipeline& pipeline) {
  model::PassCounts counts;
  if (pipeline.whole()) {
    counts = model::one_pass(options.model, model::PassKind::kTraining);
    for (std::int64_t* count :
         {&counts.embeddings, &counts.heads, &counts.blocks, &counts.blocks_again, &counts.mlps,
          &counts.mlps_again, &counts.mixtures, &counts.mixtures_again}) {
      *count *= options.num_micro_steps;
    }
    return counts;
  }
  using schedule::ActionKind;
  std::pair standing(-1, -1);
  for (const schedule::Action& action : pipeline.actions()) {
    const bool is_forward = action.kind == ActionKind::kForward;
    const bool is_backward = schedule::makes_input_gradient(action.kind);
    if (!is_forward && !is_backward && action.kind != ActionKind::kWeightGradient) continue;
    const Chunk& chunk = pipeline.chunk(action.chunk);
    const std::pair here(action.chunk, action.micro_batch);
    if (action.kind == ActionKind::kWeightGradient) {
      counts.mixtures_apart += options.model.num_mixtures(chunk.first_block, chunk.num_blocks);
    }
    if (is_forward) {
      counts.blocks += chunk.num_blocks;
      counts.mlps += options.model.num_mlps(chunk.first_block, chunk.num_blocks);
      counts.mixtures += options.model.num_mixtures(chunk.first_block, chunk.num_blocks);
      counts.embeddings += chunk.embedding ? 1 : 0;
    }
    if (is_backward) {
      const bool still_there = standing == here && action.kind == ActionKind::kBackward;
      if (options.model.recompute == model::Recompute::kFull) {
        const int again = chunk.num_blocks - (still_there ? 1 : 0);
        counts.blocks_again += again;
        counts.mlps_again += options.model.num_mlps(chunk.first_block, again);
        if (options.model.norm_after()) {
          counts.mixtures_again += options.model.num_mixtures(chunk.first_block, again);
        }
      }
      counts.heads += chunk.head ? 1 : 0;
    }
    standing = here;
  }
  return counts;
}

sharding::Traffic traffic_inside(const TrainingOptions& options, const RankPipeline& pipeline,
                                 const sharding::Mesh& mesh, int rank, DeviceKind device) {
  const model::ModelShape part = rank_model(options, mesh, rank);
  return exchange_traffic(
      part,
      model::exchanges(part, device, options.precision.reduce, model::PassKind::kTraining,
                       pass_counts(options, pipeline)),
      ring_neighbours(mesh, rank));
}

}  // namespace

sharding::Traffic TrainingStep::traffic(const TrainingOptions& options, const sharding::Mesh& mesh,
                                        int rank, DeviceKind device) {
  const sharding::ShardingPlan plan = sharding_plan(options, mesh, rank);
  const RankPipeline pipeline = rank_pipeline(options, mesh, rank);
  sharding::Traffic traffic = parameter_traffic(options, pipeline, plan);
  traffic.add(traffic_inside(options, pipeline, mesh, rank, device));
  traffic.add(sharding::gradient_traffic(plan.units, options.num_micro_steps));
  traffic.add(optim::descriptor_of(options.optimizer.type).traffic(options.optimizer, plan, rank));
  traffic.add(Pipeline::traffic(options, pipeline, mesh, rank));
  traffic.add(sharding::Agreement<RankStats>::traffic(kStepStats, mesh));
  traffic.add(ExpertStatistics::traffic(options, mesh));
  traffic.add(StabilityStatistics::traffic(options, mesh));
  return traffic;
}

}  // namespace sherd::engine
