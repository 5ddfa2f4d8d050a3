/// One rank's part of a model in training or use: its units with all that computes them (units/unit_runner.h), and the
/// pipeline that runs them in the order of a step (pipeline/pipeline.h).
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/exact_sum.h"
#include "engine/model/pass.h"
#include "engine/train/layout/training_options.h"

namespace sherd::kernels {
struct ComputeDevice;
}
namespace sherd::model {
class Transformer;
}
namespace sherd::sharding {
class GradientReduction;
class ParameterGather;
struct Rank;
struct ShardingPlan;
}  // namespace sherd::sharding

namespace sherd::engine {

class FrozenWeights;
class Pipeline;
class UnitRunner;

class ShardedModel {
 public:
  /// Acquires every buffer and fills this rank's slices with the initial values of `options.seed`,
  /// which depend neither on the stage nor on the world. They are complete when the constructor returns.
  ShardedModel(const TrainingOptions& options, const sharding::Rank& rank);
  ~ShardedModel();

  /// All that the constructor acquires, for rank `rank` of `plan`'s mesh.
  static std::vector<BufferSpec> buffers(const TrainingOptions& options,
                                         const sharding::ShardingPlan& plan,
                                         const kernels::ComputeDevice& device, int rank);

  const sharding::Rank& rank() const { return rank_; }
  const std::vector<sharding::UnitState>& units() const;
  sharding::ParameterGather& parameters();
  sharding::GradientReduction& gradients();
  model::Transformer& transformer();
  /// Frozen parameters, where there are any: engine/train/units/frozen_weights.h.
  FrozenWeights& frozen() const;

  /// Whether losses arise here; in a pipeline one rank has the head.
  bool has_head() const;
  /// A unit's number in the parameter table, and how many units the table has.
  int number_of(std::size_t unit) const { return numbers_[unit]; }
  int num_table_units() const { return num_table_units_; }
  /// Places in `units` (SHERD_CHECK: this rank has them).
  int block_unit(int block) const;
  int head_unit() const;

  /// What a step uses, and an evaluation's passes, in order: places in `units`.
  std::vector<int> training_uses() const;
  std::vector<int> evaluation_uses(int num_passes = 1) const;

  /// The uses that follow, in order, where they are others than those of a step or an evaluation.
  void plan(std::vector<int> uses);
  /// Slices of a unit have been updated: ParameterGather::publish.
  void publish(int unit, bool rounded = false);

  /// For a model that will only be used, on a CPU, and whose parameters are all here: interleaves its matrices in place,
  /// which a step of decoding reads fastest (kernels/interleaved.h). Results keep their bits. Returns false, and
  /// does nothing, where one matrix can't be interleaved, parameters come and go or are parts, or the device is a GPU.
  bool interleave_weights();

  /// All forwards and backwards of a step; Pipeline::train.
  void train(const std::function<model::Pass(int micro_batch)>& pass_of);
  /// Passes without a backward, of which at most so many may be asked for together; Pipeline::evaluate.
  int passes_at_once() const;
  void evaluate(int num_passes, const std::function<model::Pass(int pass)>& pass_of,
                const std::function<void(int pass)>& after_head);
  /// Everything before the head in one pass without a backward; each unit is gathered, used and released.
  void forward(const model::Pass& pass, Phase phase = kEvaluation);
  /// Head and loss without gradients. Nothing on a rank without the head.
  void evaluate_head(const model::Pass& pass);
  /// Logits of the pass's tokens [first, first + count), of one sequence, counted over all context ranks, at most
  /// most_logits() of them: [count, V], all of V, of the compute type, in device memory, on every rank.
  Tensor logits(std::int64_t first, std::int64_t count);
  std::int64_t most_logits() const;
  std::int64_t vocab_size() const { return options_.model.vocab_size; }

  /// Processor time that messages of a pipeline and in a ring have taken, in total.
  std::chrono::nanoseconds message_cpu_time() const;
  /// How long the compute stream has waited for other ranks, in total: for other streams, and in the
  /// model's own exchanges. On a GPU that is known when its work is done.
  struct Waits {
    std::chrono::nanoseconds all{0};
    /// For which axes (sharding/mesh/waits.h), those with several ranks, the same list on every rank.
    std::vector<std::pair<std::string, std::chrono::nanoseconds>> by_axis{};
  };
  Waits waits() const;

  /// The last pass's losses, added up: UnitRunner.
  void add_losses(std::int64_t num_tokens, bool first);
  ExactSum loss_sum();

 private:
  const TrainingOptions& options_;
  const sharding::Rank& rank_;
  std::vector<int> numbers_;  // of units
  int num_table_units_ = 0;
  std::unique_ptr<UnitRunner> runner_;
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace sherd::engine
