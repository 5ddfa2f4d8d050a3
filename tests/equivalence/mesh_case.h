/// One mesh on which a tiny model trains, and what it is compared with: the same batch on one rank.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "engine/schedule/generate.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {

struct MeshCase {
  int context = 1, tensor = 1, shards = 1, replicas = 1, pipeline = 1;
  int stage = 0, micro_steps = 1;
  schedule::Order order = schedule::Order::k1F1B;
  bool divides_optimizer = false;  ///< the replicas do
};

inline std::string name_of(const MeshCase& each) {
  return fmt::format(
      "context {} tensor {} shard {} replicate {}{} pipeline {} ({}) stage {} micro-steps {}",
      each.context, each.tensor, each.shards, each.replicas,
      each.divides_optimizer ? " which divide the optimizer" : "", each.pipeline,
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
          .divides_optimizer = each.divides_optimizer,
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

/// On tensor ranks, for a form of a model, in f32 on four of them and in bf16 on two: sharded and unsharded runs are
/// bit-identical, with all ways of recomputing; so is a pipeline with halves of backwards, if untied.
inline void expect_bits_however_recomputed(const engine::TrainingOptions& of,
                                           const model::ModelShape& form) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    engine::TrainingOptions options = of;
    options.model = form;
    options.model.dtype = dtype;
    options.precision.parameters = dtype;
    options.optimizer.moment_type = {DType::kBF16, true, 5};
    const int tensor = dtype == DType::kF32 ? 4 : 2;
    const Outcome expected =
        same_batch(options, {.tensor = tensor, .shards = 2}, {.tensor = tensor}, 2);
    int stage = tensor;
    for (const auto recompute :
         {model::Recompute::kNone, model::Recompute::kSelective, model::Recompute::kFull}) {
      options.model.recompute = recompute;
      const MeshCase each{.tensor = tensor, .shards = 2, .stage = stage++ % 4};
      EXPECT_EQ(difference(run(options, each, 2), expected), "") << name_of(each);
      if (form.tied) continue;
      const MeshCase halves{.tensor = tensor,
                            .pipeline = 2,
                            .stage = stage % 4,
                            .micro_steps = 2,
                            .order = schedule::Order::kZbH1};
      EXPECT_EQ(difference(run(options, halves, 2), expected), "") << name_of(halves);
    }
  }
}

}  // namespace sherd::testing
