/// A recipe in the words of the layers below: what one rank needs to know to build its part.
#pragma once

#include <cstdint>

#include "engine/data/batcher.h"
#include "engine/model/shape.h"
#include "engine/recipe.h"
#include "optim/loss_scaler.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "sharding/parameter_gather.h"
#include "sharding/placement.h"
#include "sharding/unit.h"

namespace sherd::engine {

struct TrainingOptions {
  model::ModelShape model;
  sharding::Placement placement;
  sharding::Precision precision;
  sharding::GatherOptions gather;
  int num_micro_steps = 1;
  std::uint64_t seed = 0;

  optim::LossScaling loss_scaling;
  optim::OptimizerOptions optimizer;
  optim::LrSchedule lr_schedule;
  float max_norm = 0.0f;  ///< 0: no clipping

  std::int64_t staging_bytes = 0;  ///< of a rank's checkpoints, at most; 0: all that it saves

  /// Tokens of one step over all ranks: what the loss is divided by, once.
  std::int64_t tokens_per_step(int world_size) const {
    return model.tokens() * num_micro_steps * world_size;
  }
};

TrainingOptions training_options(const Recipe& recipe);
data::DataOptions data_options(const Recipe& recipe);
data::BatchShape batch_shape(const Recipe& recipe);

/// Floating-point operations of one token's forward and backward: 6 per parameter that is
/// multiplied (Kaplan et al. 2020, §2.1), and 6 S H K per block for causal attention's two
/// products.
double flops_per_token(const model::ModelShape& shape);

}  // namespace sherd::engine
