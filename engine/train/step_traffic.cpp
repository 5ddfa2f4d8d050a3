// What a rank sends in a step (TrainingStep::traffic).

#include <algorithm>

#include "engine/model/adapter.h"
#include "engine/train/answer_statistics.h"
#include "engine/train/expert_statistics.h"
#include "engine/train/layout/sharding_plan.h"
#include "engine/train/pipeline/pipeline.h"
#include "engine/train/stability_statistics.h"
#include "engine/train/training_step.h"
#include "engine/train/units/kept_inputs.h"
#include "engine/train/units/model_collectives.h"
#include "optim/compressed_sum.h"
#include "optim/host_update.h"
#include "optim/outer_update.h"
#include "sharding/zero/gradient_reduction.h"
#include "sharding/zero/parameter_gather.h"

namespace sherd::engine {
namespace {

// The order of uses, and how often a step repeats it.
struct Uses {
  std::vector<int> order;
  int times = 1;
};

// Without a pipeline each micro-step uses units in the same order, which many of them make no
// longer to count. Nobody counts the uses of parameters that are all resident.
Uses uses_of(const TrainingOptions& options, const RankPipeline& pipeline,
             const sharding::ShardingPlan& plan) {
  if (std::ranges::none_of(plan.units, &sharding::UnitPlan::needs_slot)) return {};
  if (pipeline.whole()) {
    std::vector<UnitId> uses = forward_uses(pipeline.chunks[0], options.model, false);
    const std::vector<UnitId> backward = backward_uses(pipeline.chunks[0], options.model);
    uses.insert(uses.end(), backward.begin(), backward.end());
    return {places_of(uses, plan.units), options.num_micro_steps};
  }
  return {places_of(step_uses(pipeline, options.model), plan.units)};
}

sharding::Traffic parameter_traffic(const TrainingOptions& options, const RankPipeline& pipeline,
                                    const sharding::ShardingPlan& plan) {
  const Uses uses = uses_of(options, pipeline, plan);
  return sharding::parameter_traffic(plan.units, options.gather, uses.order, uses.times);
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
    for (std::int64_t& passes : counts.of_block) passes *= options.num_micro_steps;
    return counts;
  }
  using schedule::ActionKind;
  const auto lowest = static_cast<int>(model::lowest_trained_block(options.model));
  counts.of_block.resize(static_cast<std::size_t>(options.model.num_blocks()));
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
      for (int block = chunk.first_block; block < chunk.end_block(); ++block) {
        ++counts.of_block[static_cast<std::size_t>(block)];
      }
    }
    if (is_backward) {
      const bool still_there = standing == here && action.kind == ActionKind::kBackward;
      if (options.model.recompute == model::Recompute::kFull) {
        const int first = std::max(chunk.first_block, lowest);
        const int again = std::max(0, chunk.end_block() - first - (still_there ? 1 : 0));
        counts.blocks_again += again;
        counts.mlps_again += options.model.num_mlps(first, again);
        if (options.model.norm_after()) {
          counts.mixtures_again += options.model.num_mixtures(first, again);
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
  const model::PassCounts counts = pass_counts(options, pipeline);
  const auto of = [&](model::PassKind pass, const model::PassCounts& passes) {
    return exchange_traffic(part,
                            model::exchanges(part, device, options.precision.reduce, pass, passes),
                            ring_neighbours(mesh, rank));
  };
  sharding::Traffic traffic = of(model::PassKind::kTraining, counts);
  // A loss on answers needs the losses of all their tokens first.
  if (options.preference.active()) {
    model::PassCounts heads;
    heads.heads = counts.heads;
    traffic.add(of(model::PassKind::kEvaluation, heads));
  }
  return traffic;
}

}  // namespace

sharding::Traffic TrainingStep::traffic(const TrainingOptions& options, const sharding::Mesh& mesh,
                                        int rank, DeviceKind device) {
  const sharding::ShardingPlan plan = sharding_plan(options, mesh, rank);
  const RankPipeline pipeline = rank_pipeline(options, mesh, rank);
  sharding::Traffic traffic;
  if (!mesh.is_owner(rank)) {
    traffic.add(parameter_traffic(options, pipeline, plan));
    traffic.add(traffic_inside(options, pipeline, mesh, rank, device));
    traffic.add(Pipeline::traffic(options, pipeline, mesh, rank));
  }
  if (mesh.num_owners() > 0) {
    traffic.add(sharding::pull_traffic(plan.units, mesh, rank));
    traffic.add(sharding::push_traffic(plan.units, mesh, rank, options.num_micro_steps));
  } else {
    traffic.add(sharding::gradient_traffic(plan.units, options.num_micro_steps));
    if (options.compression) {
      traffic.add(optim::CompressedSum::traffic(*options.compression, plan));
    }
  }
  if (mesh.num_owners() == 0 || mesh.is_owner(rank)) {
    traffic.add(
        optim::descriptor_of(options.optimizer.type).traffic(options.optimizer, plan, rank));
  }
  traffic.add(sharding::Agreement<RankStats>::traffic(kStepStats, mesh));
  if (options.num_loss_sources > 0) {
    traffic.add(sharding::exchange_traffic(kSourceLosses,
                                           options.num_loss_sources * ExactSum::kNumbers,
                                           sharding::group_along(mesh, mesh.all_axes())));
  }
  traffic.add(AnswerStatistics::traffic(options, mesh));
  traffic.add(ExpertStatistics::traffic(options, mesh));
  traffic.add(StabilityStatistics::traffic(options, mesh));
  return traffic;
}

sharding::Traffic TrainingStep::exchange_traffic(const TrainingOptions& options,
                                                 const sharding::Mesh& mesh, int rank,
                                                 int fragment) {
  if (!options.local_updates.active()) return {};
  const sharding::ShardingPlan plan = sharding_plan(options, mesh, rank);
  return optim::OuterUpdate::traffic(options.local_updates, plan, fragments_of(options, plan.units),
                                     fragment);
}

DiskTraffic TrainingStep::disk_traffic(const TrainingOptions& options, const sharding::Mesh& mesh,
                                       int rank) {
  DiskTraffic traffic;
  if (!options.offloads()) return traffic;
  traffic.read = options.num_micro_steps * KeptInputs::bytes(rank_model(options, mesh, rank));
  traffic.written = traffic.read;
  const sharding::ShardingPlan plan = sharding_plan(options, mesh, rank);
  const bool host_updates = options.optimizer.offload.host_updates;
  for (const BufferSpec& buffer :
       optim::descriptor_of(options.optimizer.type).buffers(options.optimizer, plan, rank)) {
    if (buffer.home != Home::kDisk || host_updates) continue;
    traffic.read += buffer.bytes();
    traffic.written += buffer.bytes();
  }
  if (host_updates) {
    const DiskTraffic update = optim::HostUpdate::traffic(plan.units);
    traffic.read += update.read;
    traffic.written += update.written;
  }
  const Uses uses = uses_of(options, rank_pipeline(options, mesh, rank), plan);
  const std::vector<std::int64_t> gathers =
      count_gathers(plan.units, options.gather, uses.order, uses.times);
  for (std::size_t i = 0; i < plan.units.size(); ++i) {
    const auto fp32 = sharding::unit_buffers(plan.units[i]).fp32_parameters;
    if (!fp32 || fp32->home != Home::kDisk) continue;
    const bool is_gathered = plan.units[i].needs_slot() && !plan.units[i].divides_parts();
    if (is_gathered) traffic.read += gathers[i] * fp32->bytes();
    if (host_updates) continue;
    traffic.read += fp32->bytes();
    traffic.written += fp32->bytes();
  }
  return traffic;
}

}  // namespace sherd::engine
