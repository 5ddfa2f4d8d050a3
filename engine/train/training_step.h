/// One training step of one rank: the file to read first is training_step.cpp.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/exact_sum.h"
#include "core/link_bytes.h"
#include "engine/train/sharded_model.h"
#include "engine/train/stop_request.h"
#include "kernels/documents.h"
#include "optim/clip.h"
#include "optim/optimizer.h"
#include "sharding/mesh/exchange.h"

namespace sherd::optim {
class OuterUpdate;
class WeightAverage;
}  // namespace sherd::optim

namespace sherd::engine {

struct PreferenceReport;
struct StepChecks;

/// How evenly ranks worked: a rank's own time is the time of its step without waits for others.
struct SlowestRank {
  int rank = 0;
  double own_ms = 0.0;     ///< of that rank, the longest
  double median_ms = 0.0;  ///< of all ranks; for an even number the mean of the two in the middle
};
/// Of every rank's own time; of equal ones, the lowest rank.
SlowestRank slowest_of(const std::vector<double>& own_ms);

/// Result of a step, the same on all ranks.
struct StepResult {
  double loss = 0.0;  ///< mean over the tokens of the whole step that have a target
  /// Before clipping; the largest of replicas that train apart.
  float grad_norm = 0.0f;
  double lr = 0.0;
  double exposed_comm_ms =
      0.0;  ///< of the rank whose compute stream waited longest for communication
  /// That rank's waits by axis, for axes with several ranks. The rest of exposed time is exchanges
  /// among ranks of several axes.
  std::vector<std::pair<std::string, double>> exposed_by_axis;
  double exposed_disk_ms = 0.0;  ///< of the rank whose update waited longest for state from disk
  double data_wait_ms = 0.0;     ///< of the rank that waited longest for its batches
  double comm_cpu_ms = 0.0;      ///< of the rank whose communication workers used most CPU time
  /// From the previous step's statistics to this step's, without evaluations and saves between
  /// steps. None in a world of one rank.
  std::optional<SlowestRank> slowest{};
  /// Sent by all ranks, from the previous step's statistics to this step's; none if bytes aren't
  /// counted.
  std::optional<LinkBytes> sent{};
  /// A request that some rank received: all ranks stop after this step.
  StopRequest stop = StopRequest::kNone;
  bool save_asked = false;       ///< some rank was asked for a checkpoint
  std::int64_t num_targets = 0;  ///< that the loss is the mean over; 0: nothing was updated
  /// Of the sources that have targets in the step: number and mean loss. Empty without
  /// TrainingOptions::num_loss_sources.
  std::vector<std::pair<int, double>> source_losses{};
  bool skipped = false;     ///< the gradient overflowed: no update, a lower loss scale
  double loss_scale = 1.0;  ///< of this step
  std::string overflow;     ///< of a skipped step: the first non-finite gradient
  std::string bad_step;     ///< why the step wasn't applied (optim/bad_steps.h); empty: it was
  std::shared_ptr<const ExpertReport> experts{};         ///< ShardedModel::expert_report
  std::shared_ptr<const StabilityReport> stability{};    ///< ShardedModel::stability_report
  std::int64_t clipped_heads = 0;                        ///< by QK-clip, in all layers
  std::shared_ptr<const PreferenceReport> preference{};  ///< of a loss on answers
};

/// Whether the rank has an optimizer: with owners, they have.
bool updates(const sharding::Mesh& mesh, int rank);

/// A rank's micro-batch, i32 [T] each.
struct TokenBatch {
  ConstTensor inputs, targets;
  kernels::Documents documents{};
  ConstTensor teacher_ids{}, teacher_probabilities{};  ///< [T, K], with a teacher
  std::vector<Tensor> ahead{};                         ///< data::Batch::ahead
  std::int64_t first_row = 0;  ///< index of its first sequence in the step's batch
};
/// Returns the rank's micro-batches, each valid until the next call.
using NextBatch = std::function<TokenBatch(std::int64_t step, std::int64_t micro_step)>;

class TrainingStep {
 public:
  TrainingStep(const TrainingOptions& options, ShardedModel& model);
  ~TrainingStep();

  /// Everything that it acquires on rank `rank`: the optimizer's buffers, and those for exchanging
  /// statistics.
  static std::vector<BufferSpec> buffers(const TrainingOptions& options,
                                         const sharding::ShardingPlan& plan, int rank);
  /// What rank `rank` sends in one step, to the byte. Excluded are evaluations and the diagnosis of
  /// a step that is skipped or replayed. `device`: tensor ranks on GPUs use other chunks of logits.
  static sharding::Traffic traffic(const TrainingOptions& options, const sharding::Mesh& mesh,
                                   int rank, DeviceKind device);

  /// With local updates, what the rank sends in addition when this fragment is exchanged: after
  /// every `sync_every` steps each has been, once. Nothing without them.
  static sharding::Traffic exchange_traffic(const TrainingOptions& options,
                                            const sharding::Mesh& mesh, int rank, int fragment);

  /// What rank `rank` reads from disk and writes there in one step: all its state there once each
  /// way, and parameters whenever they are gathered. Saves are excluded.
  static DiskTraffic disk_traffic(const TrainingOptions& options, const sharding::Mesh& mesh,
                                  int rank);

  /// Runs step `step` (from 0). `asked` is what this rank is asked for after the step. With loss
  /// scaling, a step whose gradient isn't finite is skipped by all ranks.
  /// Errors   TrainingError if copies of the weights differ (engine/train/weight_check.h).
  ///          TrainingError if the loss or the gradient is not finite without loss scaling: the
  ///          parameters are then as before the step, which is replayed once to find where the
  ///          first such value arose. TrainingError if the scaler gives up (optim/loss_scaler.h),
  ///          or after too many bad steps in a row (optim/bad_steps.h).
  StepResult run(std::int64_t step, const NextBatch& next_batch, const StepRequests& asked = {});

  /// Number of tokens of a step that have a target, over all ranks and micro-steps. The loss is
  /// divided by it. It is known before the step and the same on every rank. If unset, all tokens
  /// have a target. A step without targets updates nothing.
  /// With a loss on answers it counts examples.
  std::function<std::int64_t(std::int64_t step)> num_targets;
  /// Of these, how many a layer of multi-token prediction has that predicts `ahead` tokens further.
  /// If unset, all but the last of each row.
  std::function<std::int64_t(std::int64_t step, std::int64_t ahead)> num_targets_ahead;
  /// Of replicas that train apart: those of this rank's replica. If unset, its tokens.
  std::function<std::int64_t(std::int64_t step)> num_targets_of_replica;

  /// For compression that is stronger from epoch to epoch: steps in one; 0: unknown.
  std::int64_t steps_per_epoch = 0;

  /// With TrainingOptions::num_loss_sources, both: the source of a row of the step's batch, and the
  /// tokens of each source that have a target, over all ranks and micro-steps.
  std::function<int(std::int64_t step, std::int64_t row)> source_of_row;
  std::function<std::vector<std::int64_t>(std::int64_t step)> targets_of_sources;

  std::uint64_t reference_hash = 0;  ///< Counters::reference

  /// Called before the parameters and moments of a step change (not if it is skipped).
  /// Checkpointing waits there until its snapshot is taken.
  std::function<void()> before_update;

  /// State that the trajectory depends on, in addition to parameters and moments.
  struct Counters {
    std::int64_t num_updates = 0;  ///< steps that were applied: Adam's t
    optim::LossScaler::State scaler;
    std::vector<std::int64_t> expert_counts{};  ///< ExpertStatistics::previous_counts
    optim::BadSteps::State bad_steps{};
    std::int64_t num_without_targets = 0;  ///< steps that updated nothing
    /// Hash of what losses compare with: of a loss on answers its reference, in distillation the
    /// teacher's file. 0: none.
    std::uint64_t reference = 0;
    bool operator==(const Counters&) const = default;
  };
  Counters counters() const;
  void restore(const Counters& counters);
  const optim::Optimizer& optimizer() const { return *optimizer_; }
  /// Null without TrainingOptions::average.
  const optim::WeightAverage* average() const { return average_.get(); }
  /// Exchanges the parameters and their average, and publishes; twice: as before, bit for bit. What
  /// is being saved is copied first.
  void exchange_average();
  /// The parameters were loaded, their average and the global weights weren't: they begin as they
  /// are.
  void begin_average();
  /// Null without TrainingOptions::local_updates.
  const optim::OuterUpdate* outer_update() const { return outer_.get(); }
  /// With local updates: exchanges each replica's parameters and the global weights, and publishes.
  /// With late publishing: publishes the newest parameters. Twice: as before, bit for bit. Nothing
  /// without them. A collective.
  void exchange_global_weights();
  /// With late publishing: publishes what is kept. `refresh`: the newest parameters, which are kept
  /// from then on. Nothing without it.
  void publish_kept(bool refresh);
  /// What is in flight between replicas has arrived when this returns.
  void settle();

 private:
  static constexpr const char* kStepStats = "step stats";
  static constexpr const char* kSourceLosses = "source losses";
  /// What each rank sends to all others at the end of a step's backward.
  struct RankStats {
    ExactSum::Numbers
        sum_of_squares{};          ///< of its slices' gradients; only one copy of a slice counts
    ExactSum::Numbers loss_sum{};  ///< over its tokens
    double exposed_comm_ms = 0.0;
    std::array<double, Event::kMostKinds> exposed_by_axis{};  ///< as in ShardedModel::Waits
    double comm_cpu_ms = 0.0;
    double own_ms = 0.0;  ///< SlowestRank
    double exposed_disk_ms = 0.0;
    double data_wait_ms = 0.0;
    double sent_within = 0.0, sent_across = 0.0;  ///< bytes, if they are known
    double stop_request = 0.0, save_request = 0.0;
  };
  /// What every rank computes from all RankStats, with the same result.
  struct StepStats {
    double loss = 0.0;
    float norm = 0.0f;            ///< the largest of replicas that train apart
    float gradient_scale = 1.0f;  ///< clip factor of this rank's replica / loss scale
    bool finite = true;
    StepResult result;
  };

  std::int64_t targets_of(std::int64_t step) const;
  std::int64_t targets_ahead(std::int64_t step, std::int64_t ahead) const;
  std::vector<std::int64_t> targets_of_further_losses(std::int64_t step) const;
  std::vector<model::TokensAhead> ahead_of(std::int64_t step, const TokenBatch& batch) const;
  std::int64_t targets_of_replica(std::int64_t step) const;
  /// The replica of a rank whose gradients are summed apart; 0 if all are summed together.
  int replica_of(int rank) const;
  // Weights next to those that are updated (weight_copies.cpp).
  static std::vector<BufferSpec> copies_buffers(const TrainingOptions& options,
                                                const sharding::ShardingPlan& plan);
  void make_copies();
  /// After a unit's update. Returns whether it is published later, after an exchange.
  bool update_copies(int unit, std::int64_t step);
  void synchronise_replicas(std::int64_t steps_done);
  void exchange_published();
  std::chrono::nanoseconds exchange_cpu_time() const;
  void begin_compression(std::int64_t step);
  void accumulate_gradients(std::int64_t step, const NextBatch& next_batch);
  RankStats own_stats(const StepRequests& asked);
  void begin_own_time();
  void end_own_time();
  StepStats reduce_step_stats(std::int64_t step, const StepRequests& asked);
  std::vector<std::pair<int, double>> source_losses(std::int64_t step);
  void update(std::int64_t step, float gradient_scale, StepResult& result);
  void compare_weights(std::int64_t step);
  void skip(StepResult& result);
  bool is_bad(StepResult& result);
  [[noreturn]] void explain_non_finite(std::int64_t step, const NextBatch& next_batch,
                                       const StepStats& stats);
  model::Pass pass_of(std::int64_t step, const TokenBatch& batch) const;

  const TrainingOptions& options_;
  ShardedModel& model_;
  const sharding::Rank& rank_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::WeightAverage> average_;
  std::unique_ptr<optim::OuterUpdate> outer_;
  bool shows_newest_ = false;  // of parameters that are published late
  optim::GradientNorm norm_;
  sharding::Agreement<RankStats> stats_;
  std::optional<sharding::Exchange> source_sums_;
  std::unique_ptr<StepChecks> checks_;
  optim::LossScaler scaler_;
  optim::BadSteps bad_steps_;
  std::int64_t num_updates_ = 0, num_without_targets_ = 0;
  ShardedModel::Waits waited_before_;
  std::chrono::nanoseconds waited_for_disk_{0};
  std::chrono::nanoseconds waited_for_data_{0};  // since the last statistics
  LinkBytes sent_before_;
  std::chrono::nanoseconds cpu_before_{0};
  // Of this rank's own time: what has been counted, and its beginning, and the waits until then.
  using Clock = std::chrono::steady_clock;
  std::chrono::nanoseconds own_time_{0}, waited_at_begin_{0};
  Clock::time_point begin_{};
};

}  // namespace sherd::engine
