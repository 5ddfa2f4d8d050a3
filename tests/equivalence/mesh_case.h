/// One mesh on which a tiny model trains, and what it is compared with: the same batch on one rank.
#pragma once

#include <string>

#include "engine/schedule/generate.h"
#include "tests/support/training_harness.h"

namespace sherd::testing {

struct MeshCase {
  int context = 1, tensor = 1, shards = 1, replicas = 1, pipeline = 1;
  int stage = 0, micro_steps = 1;
  schedule::Order order = schedule::Order::k1F1B;
};

inline std::string name_of(const MeshCase& each) {
  return fmt::format(
      "context {} tensor {} shard {} replicate {} pipeline {} ({}) stage {} micro-steps {}",
      each.context, each.tensor, each.shards, each.replicas, each.pipeline,
      schedule::name_of(each.order), each.stage, each.micro_steps);
}

inline RunShape setup_of(const MeshCase& each) {
  return {.world_size = each.context * each.tensor * each.shards * each.replicas * each.pipeline,
          .axes = {{"pipeline", each.pipeline},
                   {"replicate", each.replicas},
                   {"shard", each.shards},
                   {"context", each.context},
                   {"tensor", each.tensor}},
          .num_micro_steps = each.micro_steps,
          .stage = each.stage,
          .delay_seed = 17};
}

inline Outcome run(engine::TrainingOptions options, const MeshCase& each, int num_steps = 3,
                   int batch_groups = 0) {
  options.pipeline.order = each.order;
  options.pipeline.chunks_per_rank = schedule::default_chunks_per_rank(each.order);
  RunShape setup = setup_of(each);
  setup.batch_groups = batch_groups;
  return train(options, setup, num_steps);
}

/// With as many micro-batches in a step, on ranks that differ in nothing but what `left` has: those of tensor and
/// context axes, or none.
inline Outcome same_batch(const engine::TrainingOptions& options, const MeshCase& each,
                          MeshCase left = {}, int num_steps = 3) {
  left.micro_steps = each.micro_steps * each.shards * each.replicas;
  return run(options, left, num_steps, each.replicas);
}

}  // namespace sherd::testing
