/// One rank's part of a model in training or use: its units and their computation
/// (units/unit_runner.h), and the pipeline that runs them in the order of a step
/// (pipeline/pipeline.h).
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
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
namespace sherd::optim {
class CompressedSum;
}
namespace sherd::sharding {
class GradientReduction;
class ParameterGather;
struct Rank;
struct ShardingPlan;
}  // namespace sherd::sharding

namespace sherd::engine {

struct Answer;
struct ExpertReport;
struct PreferenceReport;
struct StabilityReport;
class AnswerStatistics;
class ExpertStatistics;
class FrozenWeights;
class Pipeline;
class QkClip;
class StabilityStatistics;
class UnitRunner;

class ShardedModel {
 public:
  /// Acquires every buffer and fills this rank's slices with the initial values of `options.seed`,
  /// which depend neither on the stage nor on the world. They are complete when the constructor
  /// returns.
  ShardedModel(const TrainingOptions& options, const sharding::Rank& rank);
  ~ShardedModel();

  /// Everything that the constructor acquires, for rank `rank` of `plan`'s mesh.
  static std::vector<BufferSpec> buffers(const TrainingOptions& options,
                                         const sharding::ShardingPlan& plan,
                                         const kernels::ComputeDevice& device, int rank);

  const sharding::Rank& rank() const { return rank_; }
  const std::vector<sharding::UnitState>& units() const;
  sharding::ParameterGather& parameters();
  sharding::GradientReduction& gradients();
  /// Null without TrainingOptions::compression.
  optim::CompressedSum* compressed_sum() const;
  model::Transformer& transformer();  ///< of a rank that computes
  /// Whether this rank computes; an owner (sharding/mesh/mesh.h) only updates.
  bool computes() const;
  /// The part of the model that this rank computes, or whose state it owns.
  const model::ModelShape& shape() const;
  /// Frozen parameters, where there are any: engine/train/units/frozen_weights.h.
  FrozenWeights& frozen() const;

  /// Whether this rank computes losses; in a pipeline one rank has the head.
  bool has_head() const;
  /// A unit's index in the parameter table, and the number of units in the table.
  int number_of(std::size_t unit) const { return numbers_[unit]; }
  int num_table_units() const { return num_table_units_; }
  /// Indices in `units` (SHERD_CHECK: this rank has them).
  int block_unit(int block) const;
  int head_unit() const;

  /// The uses of a step, and of an evaluation's passes, in order: indices in `units`.
  std::vector<int> training_uses() const;
  std::vector<int> evaluation_uses(int num_passes = 1) const;

  /// Sets the uses that follow, in order, if they differ from those of a step or an evaluation.
  void plan(std::vector<int> uses);
  /// Slices of a unit have been updated: ParameterGather::publish.
  void publish(int unit, bool rounded = false, Stream* updating = nullptr);
  void publish_kept(int unit, bool refresh);  ///< ParameterGather::publish_kept

  /// For a model that is no longer trained, on a CPU that holds all parameters: interleaves its
  /// matrices in place, the fastest layout for a decoding step (kernels/interleaved.h). Results
  /// stay bit-identical. Returns false and does nothing if a matrix can't be interleaved, if
  /// parameters are gathered and released or are parts, or on a GPU.
  bool interleave_weights();

  /// All forwards and backwards of a step; Pipeline::train. Counts what routers decide.
  void train(const std::function<model::Pass(int micro_batch)>& pass_of);
  /// What routers have decided in the last step, over all ranks (expert_statistics.h). A
  /// collective; null and nothing for a model without experts.
  std::shared_ptr<const ExpertReport> expert_report();
  /// The same for stability_statistics.h, of a step with these numbers of targets of its further
  /// losses; null and nothing if none of it is asked for.
  std::shared_ptr<const StabilityReport> stability_report(
      std::span<const std::int64_t> num_targets);
  /// After an update with these counts: routers with a bias for their choice correct it, and losses
  /// that count the previous step's choices get them.
  void correct_router(int unit, const ExpertReport& report);
  void remember(const ExpertReport& report);
  /// QK-clip (qk_clip.h): the query heads that it scales after a step with this report, in all
  /// layers; 0 without it. Then, after the update of a unit, scales this rank's part of it; returns
  /// whether it has changed anything.
  std::int64_t num_clipped_heads(const StabilityReport* report) const;
  bool clip_heads(int unit, const StabilityReport& report);
  /// ExpertStatistics::previous_counts, for checkpoints.
  const std::vector<std::int64_t>& expert_counts() const;
  void set_expert_counts(const std::vector<std::int64_t>& counts);
  /// Passes without a backward, at most passes_at_once() in one call; Pipeline::evaluate.
  int passes_at_once() const;
  void evaluate(int num_passes, const std::function<model::Pass(int pass)>& pass_of,
                const std::function<void(int pass)>& after_head);
  /// Everything before the head in one pass without a backward; each unit is gathered, used and
  /// released.
  void forward(const model::Pass& pass, Phase phase = kEvaluation);
  /// Head and loss without gradients. Nothing on a rank without the head.
  void evaluate_head(const model::Pass& pass);
  /// Logits of the pass's tokens [first, first + count), of one sequence, counted over all context
  /// ranks, at most most_logits() of them. [count, V] with the whole vocabulary, in the compute
  /// type and device memory, on every rank.
  Tensor logits(std::int64_t first, std::int64_t count);
  std::int64_t most_logits() const;
  std::int64_t vocab_size() const { return options_.model.vocab_size; }

  /// CPU time spent on pipeline and ring messages, in total.
  std::chrono::nanoseconds message_cpu_time() const;
  /// How long the compute stream has waited for other ranks, in total: for other streams, and in
  /// the model's own exchanges. On a GPU this is known when its work is done.
  struct Waits {
    std::chrono::nanoseconds all{0};
    /// By axis (sharding/mesh/waits.h), for axes with several ranks; the same list on every rank.
    std::vector<std::pair<std::string, std::chrono::nanoseconds>> by_axis{};
  };
  Waits waits() const;

  /// The last pass's losses, added up: UnitRunner.
  void add_losses(std::int64_t num_tokens, bool first);
  ExactSum loss_sum();
  ExactSum step_loss_sum();  ///< UnitRunner::step_loss_sum
  std::vector<float> losses(std::int64_t num_tokens);
  /// For a loss on answers (engine/train/units/answer_losses.h); nothing on a rank without the head.
  void set_answers(std::function<std::vector<Answer>(std::int64_t first_row)> answers_of,
                   std::span<const double> reference);
  /// Of the last step's answers, over all ranks. A collective; null and nothing without such a loss.
  std::shared_ptr<const PreferenceReport> preference_report();
  void set_source_of_row(std::function<int(std::int64_t row)> source);
  std::vector<ExactSum> source_loss_sums();

 private:
  const TrainingOptions& options_;
  const sharding::Rank& rank_;
  std::vector<int> numbers_;  // of units in the parameter table
  int num_table_units_ = 0;
  std::unique_ptr<ExpertStatistics> experts_;
  std::unique_ptr<StabilityStatistics> stability_;
  std::unique_ptr<AnswerStatistics> answers_;
  std::shared_ptr<const QkClip> qk_clip_;  // null: none
  std::unique_ptr<UnitRunner> runner_;
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace sherd::engine
