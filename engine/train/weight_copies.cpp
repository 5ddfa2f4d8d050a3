// Weights next to those that a step updates: their average, and the global weights of replicas that
// train apart. The step is made here, so that its own file needs to know little of what it holds by
// pointer.

#include <algorithm>
#include <iterator>

#include "engine/train/layout/sharding_plan.h"
#include "engine/train/step_checks.h"
#include "engine/train/training_step.h"
#include "optim/average.h"
#include "optim/compressed_sum.h"
#include "optim/outer_update.h"
#include "sharding/zero/parameter_gather.h"

namespace sherd::engine {
namespace {

/// Of a worker that has owners.
class NoOptimizer final : public optim::Optimizer {
 public:
  void update(Stream&, int, const optim::UpdateStep&) override {}
  std::vector<optim::MomentPiece> moment_pieces() const override { return {}; }
};

std::unique_ptr<optim::Optimizer> optimizer_of(const TrainingOptions& options,
                                               const ShardedModel& model) {
  if (!updates(model.rank().mesh, model.rank().rank)) return std::make_unique<NoOptimizer>();
  return optim::make_optimizer(options.optimizer, model.rank(), model.units());
}

int numbers_of_sources(const TrainingOptions& options) {
  return options.num_loss_sources * ExactSum::kNumbers;
}

}  // namespace

bool updates(const sharding::Mesh& mesh, int rank) {
  return mesh.num_owners() == 0 || mesh.is_owner(rank);
}

std::vector<BufferSpec> TrainingStep::buffers(const TrainingOptions& options,
                                              const sharding::ShardingPlan& plan, int rank) {
  const int world_size = plan.mesh.world_size();
  const optim::NormBuffers norm = optim::gradient_norm_buffers(plan.units);
  std::vector<BufferSpec> buffers;
  if (updates(plan.mesh, rank)) {
    buffers = optim::descriptor_of(options.optimizer.type).buffers(options.optimizer, plan, rank);
    std::ranges::move(copies_buffers(options, plan), std::back_inserter(buffers));
  }
  buffers.insert(buffers.end(), {norm.sums, norm.workspace,
                                 sharding::Agreement<RankStats>::buffer(kStepStats, world_size),
                                 StepChecks::buffer(world_size)});
  if (const int count = numbers_of_sources(options); count > 0) {
    buffers.push_back(sharding::exchange_buffer(kSourceLosses, count, world_size));
  }
  return buffers;
}

TrainingStep::TrainingStep(const TrainingOptions& options, ShardedModel& model)
    : options_(options),
      model_(model),
      rank_(model.rank()),
      optimizer_(optimizer_of(options, model)),
      norm_(rank_, model.units()),
      stats_(rank_, kStepStats),
      checks_(std::make_unique<StepChecks>(options, model)),
      scaler_(options.loss_scaling),
      bad_steps_(options.bad_steps) {
  if (const int count = numbers_of_sources(options); count > 0) {
    source_sums_.emplace(rank_, kSourceLosses, count);
  }
  make_copies();
}

TrainingStep::~TrainingStep() = default;

std::vector<BufferSpec> TrainingStep::copies_buffers(const TrainingOptions& options,
                                                     const sharding::ShardingPlan& plan) {
  std::vector<BufferSpec> buffers = optim::WeightAverage::buffers(options.average, plan);
  std::ranges::move(
      optim::OuterUpdate::buffers(options.local_updates, plan, fragments_of(options, plan.units)),
      std::back_inserter(buffers));
  return buffers;
}

void TrainingStep::make_copies() {
  const std::vector<sharding::UnitState>& units = model_.units();
  if (!updates(rank_.mesh, rank_.rank)) return;
  if (options_.average.active()) {
    average_ =
        std::make_unique<optim::WeightAverage>(options_.average, options_.optimizer, rank_, units);
  }
  if (options_.local_updates.active()) {
    outer_ = std::make_unique<optim::OuterUpdate>(
        options_.local_updates, options_.optimizer, rank_, units,
        fragments_of(options_, sharding::plans_of(units)));
  }
}

bool TrainingStep::update_copies(int unit, std::int64_t step) {
  if (average_) average_->update(rank_.compute(), unit, num_updates_);
  const std::optional<int> applied = options_.local_updates.applied(step + 1);
  return applied && outer_->has(*applied, unit);
}

// Reductions change errors, which may be being saved.
void TrainingStep::begin_compression(std::int64_t step) {
  optim::CompressedSum* const sum = model_.compressed_sum();
  if (sum == nullptr) return;
  if (before_update) before_update();
  sum->begin_step(step, steps_per_epoch > 0 ? step / steps_per_epoch : 0, targets_of(step) > 0);
}

std::chrono::nanoseconds TrainingStep::exchange_cpu_time() const {
  return outer_ ? outer_->cpu_time() : std::chrono::nanoseconds(0);
}

// By the number of steps alone, whether or not they were applied: so all replicas agree.
void TrainingStep::synchronise_replicas(std::int64_t steps_done) {
  const std::optional<int> sent = options_.local_updates.sent(steps_done);
  const std::optional<int> applied = options_.local_updates.applied(steps_done);
  if (!sent && !applied) return;
  if (before_update) before_update();
  TraceSpan span(rank_.compute(), "local updates");
  if (sent) outer_->send(*sent);
  if (!applied) return;
  outer_->apply(*applied);
  for (int unit = 0; unit < std::ssize(model_.units()); ++unit) {
    if (outer_->has(*applied, unit)) model_.publish(unit);
  }
}

void TrainingStep::exchange_average() {
  SHERD_CHECK(options_.average.active(), "no average is kept");
  if (before_update) before_update();
  if (!model_.computes()) model_.parameters().settle();
  for (std::size_t unit = 0; unit < model_.units().size(); ++unit) {
    if (average_) average_->exchange(rank_.compute(), static_cast<int>(unit));
    model_.publish(static_cast<int>(unit));
  }
}

void TrainingStep::begin_average() {
  if (average_) average_->begin(rank_.compute());
  if (outer_) outer_->begin();
}

void TrainingStep::publish_kept(bool refresh) {
  if (!options_.placement.published_late) return;
  for (int unit = 0; unit < std::ssize(model_.units()); ++unit) model_.publish_kept(unit, refresh);
}

// Of parameters that are published late, the newest.
void TrainingStep::exchange_published() {
  if (!options_.placement.published_late) return;
  shows_newest_ = !shows_newest_;
  if (!shows_newest_) return publish_kept(false);
  for (int unit = 0; unit < std::ssize(model_.units()); ++unit) model_.publish(unit);
}

void TrainingStep::exchange_global_weights() {
  exchange_published();
  if (!outer_) return;
  if (before_update) before_update();
  outer_->settle();
  for (int unit = 0; unit < std::ssize(model_.units()); ++unit) {
    outer_->exchange(unit);
    model_.publish(unit);
  }
}

void TrainingStep::settle() {
  if (!outer_) return;
  outer_->settle();
  rank_.compute().synchronize();
}

}  // namespace sherd::engine
