/// The options from which a rank builds its part of a training run, as the layers below expect
/// them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "engine/model/shape.h"
#include "engine/preference/preference_loss.h"
#include "engine/schedule/order.h"
#include "optim/average_options.h"
#include "optim/bad_steps.h"
#include "optim/local_updates.h"
#include "optim/loss_scaler.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "sharding/zero/unit.h"

namespace sherd::optim {
struct Compression;
}

namespace sherd::engine {

/// How layers are divided along the mesh's pipeline axis, if it has several ranks.
struct PipelineOptions {
  schedule::Order order = schedule::Order::k1F1B;
  int chunks_per_rank = 1;
  std::vector<int> layers_per_chunk{};  ///< in the order of the model; empty: balanced by time
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
  /// By part (ModelShape::layer_parts): the units of layers that are sharded differently.
  std::map<int, PartSharding> parts{};
  sharding::GatherOptions gather;
  PipelineOptions pipeline;
  int num_micro_steps = 1;
  std::uint64_t seed = 0;
  bool overfit_one_batch = false;  ///< every step uses the batch of step 0
  /// Initial weights are drawn from `seed`. Otherwise they are uninitialised, and all must be
  /// loaded before use.
  bool draws_weights = true;
  bool separate_documents = false;  ///< batches say where documents lie
  bool nf4_base = false;            ///< the blocks' frozen matrices are stored as NF4
  int num_loss_sources = 0;         ///< whose losses are summed separately; 0: none
  bool adds_tokens = false;         ///< to the vocabulary of the model's source folder
  /// The matmul that computes a weight gradient adds it to the gradients of earlier micro-steps,
  /// and an untied token embedding's kernel does the same, if the accumulator is whole. This saves
  /// a pass over memory and changes the last digits.
  bool adds_in_matmuls = false;

  PreferenceOptions preference{};  ///< the loss is one on whole answers

  optim::LossScaling loss_scaling;
  optim::OptimizerOptions optimizer;
  optim::LrSchedule lr_schedule;
  float max_norm = 0.0f;  ///< 0: no clipping
  optim::BadStepRules bad_steps{};
  optim::AverageOptions average{};
  /// If active, placements have `replicas_apart`, and one group of the batch.
  optim::LocalUpdates local_updates{};
  /// Of gradients that replicas add (optim/compression.h); null: none.
  std::shared_ptr<const optim::Compression> compression{};
  /// W_q and W_k of a head whose largest logit exceeds the threshold are scaled after the update.
  double qk_clip_threshold = 0.0, qk_clip_alpha = 0.5;  ///< threshold 0: no clip
  /// Steps after which copies of the weights are compared (weight_check.h); 0: never.
  std::int64_t weight_hash_interval = 0;

  /// Whether state or kept inputs are elsewhere between uses (core/offload_home.h).
  bool offloads() const { return optimizer.offload.active() || model.residual_slots > 0; }

  PartSharding sharding_of(const UnitId& unit) const {
    const auto own = parts.find(unit.part);
    PartSharding how = own == parts.end() ? PartSharding{placement, precision} : own->second;
    if (unit.part > 0 && model.layer_parts[static_cast<std::size_t>(unit.part) - 1].in_f32) {
      how.precision = {DType::kF32, DType::kF32, DType::kF32};
    }
    return how;
  }

  /// Shards the units of experts over the ranks that hold the same ones, if ranks divide the
  /// experts along the mesh's expert axis.
  void divide_experts();

  std::int64_t staging_bytes = 0;  ///< per rank, at most, for checkpoints; 0: all it saves

  /// Tokens of one step over all ranks. The loss is divided by this number, once, if all tokens
  /// have a target. `data_degree` is the number of parts into which ranks divide a batch
  /// (Rank::data_degree).
  std::int64_t tokens_per_step(int data_degree) const {
    return model.tokens() * num_micro_steps * data_degree;
  }
};

/// Floating-point operations of one token's forward and backward. 6 per parameter that is
/// multiplied (Kaplan et al. 2020, §2.1), 4 if it is frozen and has no gradient, 8 for an adapter's
/// A, whose product is computed twice. 12 H K per block and visible key for attention's two
/// matmuls: S / 2 keys, or with a window W - W^2 / (2 S).
double flops_per_token(const model::ModelShape& shape);

}  // namespace sherd::engine
