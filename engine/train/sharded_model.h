/// One rank's part of a model: the units it holds slices of, the streams' traffic around them, and
/// the transformer that computes on full units while they are there.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/exact_sum.h"
#include "engine/model/pass.h"
#include "engine/train/training_options.h"
#include "sharding/mesh/mirrored_buffer.h"
#include "sharding/zero/gradient_reduction.h"
#include "sharding/zero/parameter_gather.h"

namespace sherd::model {
class Transformer;
}

namespace sherd::engine {

class FrozenWeights;

/// The units that a training micro-step uses, and those that an evaluation uses, in order: numbers
/// in the parameter table.
std::vector<int> training_uses(const model::ModelShape& shape);
std::vector<int> evaluation_uses(const model::ModelShape& shape);

/// Where losses are added up.
BufferSpec loss_sum_buffer();

class ShardedModel {
 public:
  /// Acquires every buffer and fills this rank's slices with the initial values of `options.seed`,
  /// which depend neither on the stage nor on the world.
  ShardedModel(const TrainingOptions& options, const sharding::Rank& rank);
  ~ShardedModel();

  const sharding::Rank& rank() const { return rank_; }
  const std::vector<sharding::UnitState>& units() const { return units_; }
  sharding::ParameterGather& parameters() { return parameters_; }
  sharding::GradientReduction& gradients() { return gradients_; }
  model::Transformer& transformer() { return *transformer_; }

  int num_blocks() const { return num_blocks_; }
  int embedding_unit() const { return 0; }
  int block_unit(int block) const { return 1 + block; }
  int head_unit() const { return tied_ ? 0 : 1 + num_blocks_; }

  std::vector<int> training_uses() const { return engine::training_uses(options_.model); }
  std::vector<int> evaluation_uses() const { return engine::evaluation_uses(options_.model); }

  /// Frozen parameters, where there are any: engine/train/frozen_weights.h.
  FrozenWeights& frozen() const { return *frozen_; }

  /// Embedding and blocks of one pass; each unit is gathered, used and released. `phase` is
  /// kForward, or kEvaluation if no backward follows.
  void forward(const model::Pass& pass, Phase phase = kForward);
  /// Head, loss and blocks back to the embedding; each unit's gradient is closed when it is whole.
  void backward(const model::Pass& pass);
  /// Head and loss without gradients.
  void evaluate_head(const model::Pass& pass);
  /// Logits of the pass's tokens [first, first + count), at most Transformer::most_logits() of them:
  /// [count, V] of the compute type, in device memory.
  Tensor logits(std::int64_t first, std::int64_t count);

  /// Adds the last pass's losses of the first `num_tokens` tokens, in f64, to a sum on the device;
  /// `first`: the sum begins with them.
  void add_losses(std::int64_t num_tokens, bool first);
  /// That sum. Blocks until it is there.
  ExactSum loss_sum();

 private:
  void section(const char* label, int unit, const std::vector<Tensor>& parameters,
               const std::vector<Tensor>& gradients, const model::Pass& pass,
               const std::function<void()>& enqueue);

  const TrainingOptions& options_;
  const sharding::Rank& rank_;
  int num_blocks_;
  bool tied_;
  std::vector<sharding::UnitState> units_;
  std::unique_ptr<FrozenWeights> frozen_;
  sharding::ParameterGather parameters_;
  sharding::GradientReduction gradients_;
  std::unique_ptr<model::Transformer> transformer_;
  sharding::MirroredBuffer loss_sum_;
};

}  // namespace sherd::engine
