/// One training step of one rank: the file to read first is training_step.cpp.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "engine/sharded_model.h"
#include "engine/stop_request.h"
#include "optim/clip.h"
#include "sharding/exchange.h"

namespace sherd::engine {

/// What every rank knows after a step, the same on all of them.
struct StepResult {
  double loss = 0.0;       ///< mean over the tokens of the whole step
  float grad_norm = 0.0f;  ///< before clipping
  double lr = 0.0;
  double exposed_comm_ms = 0.0;  ///< worst rank: its compute stream stood still for communication
  double comm_cpu_ms = 0.0;      ///< worst rank: processor time of its communication workers
  /// What some rank was asked for: all stop after this step.
  StopRequest stop = StopRequest::kNone;
  bool skipped = false;     ///< the gradient overflowed: no update, a lower loss scale
  double loss_scale = 1.0;  ///< of this step
  std::string overflow;     ///< of a skipped step: the first non-finite gradient
};

/// Gives the rank's micro-batches, i32 [T] each, valid until the next call.
struct TokenBatch {
  ConstTensor inputs, targets;
};
using NextBatch = std::function<TokenBatch(std::int64_t step, std::int64_t micro_step)>;

/// Everything that a TrainingStep acquires on rank `rank`: the optimizer's buffers and what the
/// verdict needs.
std::vector<BufferSpec> training_step_buffers(const TrainingOptions& options,
                                              const std::vector<sharding::UnitPlan>& units,
                                              int rank);

/// What rank `rank` sends in one step, to the byte. Not in it: evaluations, and the diagnosis of a
/// step that is skipped or replayed.
sharding::Traffic training_step_traffic(const TrainingOptions& options, int world_size, int rank);

class TrainingStep {
 public:
  TrainingStep(const TrainingOptions& options, ShardedModel& model);

  /// Runs step `step` (from 0). `asked` is this rank's wish to end after the step.
  /// With loss scaling, a step whose gradient isn't finite is skipped by all ranks.
  /// Errors   TrainingError if the loss or the gradient is not finite without loss scaling: the
  ///          parameters are then as before the step, which is replayed once to find where the
  ///          first such value arose. TrainingError if the scaler gives up (optim/loss_scaler.h).
  StepResult run(std::int64_t step, const NextBatch& next_batch,
                 StopRequest asked = StopRequest::kNone);

  /// Called before the parameters and moments of a step change (not if it is skipped).
  std::function<void()> before_update;

  /// What the trajectory depends on besides parameters and moments.
  struct Counters {
    std::int64_t num_updates = 0;  ///< steps that weren't skipped: Adam's t
    optim::LossScaler::State scaler;
    bool operator==(const Counters&) const = default;
  };
  Counters counters() const { return {num_updates_, scaler_.state()}; }
  void restore(const Counters& counters) {
    num_updates_ = counters.num_updates;
    scaler_.restore(counters.scaler);
  }
  const optim::Optimizer& optimizer() const { return *optimizer_; }

 private:
  struct Verdict {
    double loss = 0.0;
    float norm = 0.0f;
    float gradient_scale = 1.0f;  ///< clip factor / loss scale
    bool finite = true;
    StepResult result;
  };

  double accumulate_gradients(std::int64_t step, const NextBatch& next_batch);
  Verdict judge(double loss_sum, StopRequest asked);
  void update(std::int64_t step, float gradient_scale);
  void skip(StepResult& result);
  [[noreturn]] void explain_non_finite(std::int64_t step, const NextBatch& next_batch,
                                       const Verdict& verdict);
  model::Pass pass_of(std::int64_t step, int micro_step, const TokenBatch& batch) const;

  const TrainingOptions& options_;
  ShardedModel& model_;
  const sharding::Rank& rank_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::GradientNorm norm_;
  sharding::Exchange exchange_;
  sharding::Exchange diagnosis_exchange_;
  optim::LossScaler scaler_;
  std::int64_t num_updates_ = 0;
  std::chrono::nanoseconds waited_before_{0};
  std::chrono::nanoseconds cpu_before_{0};
};

}  // namespace sherd::engine
