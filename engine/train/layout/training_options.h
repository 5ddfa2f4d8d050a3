/// What one rank needs to know to build its part of a training, in the words of the layers below.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/model/shape.h"
#include "engine/schedule/order.h"
#include "optim/loss_scaler.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "sharding/zero/slot_schedule.h"
#include "sharding/zero/unit.h"

namespace sherd::engine {

/// How layers are divided among the ranks along the mesh's pipeline axis, where it has more than one.
struct PipelineOptions {
  schedule::Order order = schedule::Order::k1F1B;
  int chunks_per_rank = 1;
  std::vector<int> layers_per_chunk{};  ///< in the order of the model; empty: dealt by time
};

/// Where a unit's state lives, and in which types.
struct PartSharding {
  sharding::Placement placement;
  sharding::Precision precision;
};

struct TrainingOptions {
  model::ModelShape model;
  sharding::Placement placement;
  sharding::Precision precision;
  /// By part (ModelShape::layer_parts): the units of layers that are sharded otherwise.
  std::map<int, PartSharding> parts{};
  sharding::GatherOptions gather;
  PipelineOptions pipeline;
  int num_micro_steps = 1;
  std::uint64_t seed = 0;
  /// Initial weights are drawn from `seed`. Without it they are whatever the memory holds, and all of them must be read
  /// before they are used.
  bool draws_weights = true;
  bool separate_documents = false;  ///< batches say where documents lie
  bool nf4_base = false;            ///< the blocks' frozen matrices rest as NF4 (kernels/nf4.h)
  bool adds_tokens = false;         ///< to the vocabulary of the folder that the model comes from
  /// Weight gradients are added to those of earlier micro-steps by the matmul that forms them, and an untied token
  /// embedding's by its kernel, where the accumulator is whole: without a pass over memory for it, and with other last
  /// digits.
  bool adds_in_matmuls = false;

  optim::LossScaling loss_scaling;
  optim::OptimizerOptions optimizer;
  optim::LrSchedule lr_schedule;
  float max_norm = 0.0f;  ///< 0: no clipping

  PartSharding sharding_of(const UnitId& unit) const {
    const auto own = parts.find(unit.part);
    return own == parts.end() ? PartSharding{placement, precision} : own->second;
  }

  std::int64_t staging_bytes = 0;  ///< of a rank's checkpoints, at most; 0: all that it saves

  /// Tokens of one step over all ranks: what the loss is divided by, once, where all of them have a
  /// target. `data_degree` is the number of parts into which ranks divide a batch (Rank::data_degree).
  std::int64_t tokens_per_step(int data_degree) const {
    return model.tokens() * num_micro_steps * data_degree;
  }
};

/// Floating-point operations of one token's forward and backward: 6 per parameter that is
/// multiplied (Kaplan et al. 2020, §2.1), 4 where it is frozen and has no gradient, 8 of an adapter's A,
/// whose product is formed twice, and 12 H K per block for each key that a query sees, for
/// attention's two products: S / 2 keys, or with a window W - W^2 / (2 S).
double flops_per_token(const model::ModelShape& shape);

}  // namespace sherd::engine
