// A training step, as one rank takes it:
//
//   for each micro-step   forward, backward: gradients go to the slices as units finish
//   judge                 one small exchange: loss, gradient norm, and whether all is finite
//   update                (or skip, if loss scaling overflowed) every rank its own slices; the new
//   parameters are published unit by unit
//                         and arrive under the next step's forward
//
// Which of it communicates, and when, is the business of ParameterGather and GradientReduction.

#include "engine/training_step.h"

#include <algorithm>
#include <cmath>

#include "engine/diagnosis.h"
#include "engine/memory_plan.h"

namespace sherd::engine {

namespace {

constexpr int kVerdictNumbers = 5;

}  // namespace

std::vector<BufferSpec> training_step_buffers(const TrainingOptions& options,
                                              const std::vector<sharding::UnitPlan>& units,
                                              int rank) {
  const int world_size = units[0].layout.world_size();
  const optim::NormBuffers norm = optim::gradient_norm_buffers(units);
  std::vector<BufferSpec> buffers = optim::optimizer_buffers(options.optimizer, units, rank);
  buffers.insert(
      buffers.end(),
      {norm.sums, norm.workspace, sharding::exchange_buffer("verdict", kVerdictNumbers, world_size),
       sharding::exchange_buffer("diagnosis", Diagnosis::kNumbers, world_size)});
  return buffers;
}

sharding::Traffic training_step_traffic(const TrainingOptions& options, int world_size, int rank) {
  const auto units = plan_units(options, world_size);
  sharding::Traffic traffic = sharding::parameter_traffic(
      units, options.gather, training_uses(options.model), options.num_micro_steps);
  traffic.add(sharding::gradient_traffic(units, options.num_micro_steps));
  traffic.add(optim::optimizer_traffic(options.optimizer, units, rank));
  traffic.add(sharding::exchange_traffic("verdict", kVerdictNumbers, world_size));
  return traffic;
}

TrainingStep::TrainingStep(const TrainingOptions& options, ShardedModel& model)
    : options_(options),
      model_(model),
      rank_(model.rank()),
      optimizer_(optim::make_optimizer(options.optimizer, rank_, model.units())),
      norm_(rank_, model.units()),
      exchange_(rank_, "verdict", kVerdictNumbers),
      diagnosis_exchange_(rank_, "diagnosis", Diagnosis::kNumbers),
      scaler_(options.loss_scaling) {}

StepResult TrainingStep::run(std::int64_t step, const NextBatch& next_batch, StopRequest asked) {
  accumulate_gradients(step, next_batch);
  const Verdict verdict = judge(asked);
  StepResult result = verdict.result;
  result.lr = optim::learning_rate(options_.lr_schedule, step);
  result.loss_scale = scaler_.scale();
  if (verdict.finite) {
    update(step, verdict.gradient_scale);
    scaler_.clean_step();
  } else if (scaler_.active()) {
    skip(result);
  } else {
    explain_non_finite(step, next_batch, verdict);
  }
  return result;
}

// Parameters, moments and Adam's step count stay as they are. Every rank is here, since the verdict
// is one.
void TrainingStep::skip(StepResult& result) {
  Diagnosis diagnosis(model_, diagnosis_exchange_);
  diagnosis.look_at_slices();
  result.skipped = true;
  result.overflow = diagnosis.where();
  scaler_.skipped_step();
}

// The step's gradient on every rank's slices, and the sum of this rank's token losses.
void TrainingStep::accumulate_gradients(std::int64_t step, const NextBatch& next_batch) {
  std::vector<int> uses;
  for (int micro_step = 0; micro_step < options_.num_micro_steps; ++micro_step) {
    const std::vector<int> more = model_.training_uses();
    uses.insert(uses.end(), more.begin(), more.end());
  }
  model_.parameters().plan(std::move(uses));

  for (int micro_step = 0; micro_step < options_.num_micro_steps; ++micro_step) {
    const model::Pass pass = pass_of(step, micro_step, next_batch(step, micro_step));
    model_.gradients().begin_micro_step(micro_step);
    model_.forward(pass);
    model_.backward(pass);
    model_.add_losses(options_.model.tokens(), micro_step == 0);
  }
  model_.gradients().finish();
}

model::Pass TrainingStep::pass_of(std::int64_t step, int micro_step,
                                  const TokenBatch& batch) const {
  const std::int64_t rows_before =
      static_cast<std::int64_t>(micro_step) * rank_.world_size + rank_.rank;
  return {.inputs = batch.inputs,
          .targets = batch.targets,
          .training = true,
          .seed = options_.seed,
          .step = static_cast<std::uint32_t>(step),
          .first_row = rows_before * options_.model.sequences,
          .gradient_scale = static_cast<float>(
              scaler_.scale() / static_cast<double>(options_.tokens_per_step(rank_.world_size)))};
}

// Every rank adds the same numbers in the same order, so every rank reaches the same verdict.
TrainingStep::Verdict TrainingStep::judge(StopRequest asked) {
  TraceSpan span(rank_.compute(), "judge");
  rank_.memory->enter(kUpdate);
  const double sum_of_own_squares = norm_.local_sum_of_squares();
  const double own_loss_sum = model_.loss_sum();
  // Read when the step's work is done: a GPU knows only then how long it waited.
  const auto waited = rank_.compute().waited();
  const auto cpu = rank_.gather().cpu_time() + rank_.reduce().cpu_time();
  const double mine[] = {sum_of_own_squares, own_loss_sum,
                         std::chrono::duration<double, std::milli>(waited - waited_before_).count(),
                         std::chrono::duration<double, std::milli>(cpu - cpu_before_).count(),
                         static_cast<double>(asked)};
  waited_before_ = waited;
  cpu_before_ = cpu;

  double sum_of_squares = 0.0;
  double total_loss = 0.0;
  Verdict verdict;
  for (const std::vector<double>& row : exchange_.all("verdict", mine)) {
    sum_of_squares += row[0];
    total_loss += row[1];
    verdict.result.exposed_comm_ms = std::max(verdict.result.exposed_comm_ms, row[2]);
    verdict.result.comm_cpu_ms = std::max(verdict.result.comm_cpu_ms, row[3]);
    verdict.result.stop =
        std::max(verdict.result.stop, static_cast<StopRequest>(static_cast<int>(row[4])));
  }
  verdict.norm = static_cast<float>(std::sqrt(sum_of_squares) / scaler_.scale());
  verdict.loss = total_loss / static_cast<double>(options_.tokens_per_step(rank_.world_size));
  verdict.finite = std::isfinite(verdict.norm) && std::isfinite(verdict.loss);
  verdict.gradient_scale =
      static_cast<float>(optim::clip_scale(verdict.norm, options_.max_norm) / scaler_.scale());
  verdict.result.loss = verdict.loss;
  verdict.result.grad_norm = verdict.norm;
  return verdict;
}

void TrainingStep::update(std::int64_t step, float gradient_scale) {
  if (before_update) before_update();
  TraceSpan span(rank_.compute(), "update");
  const optim::UpdateStep how{
      .lr = static_cast<float>(optim::learning_rate(options_.lr_schedule, step)),
      .time_step = ++num_updates_,
      .gradient_scale = gradient_scale};
  optimizer_->prepare(rank_.compute(), how);
  for (std::size_t unit = 0; unit < model_.units().size(); ++unit) {
    optimizer_->update(rank_.compute(), static_cast<int>(unit), how);
    model_.parameters().publish(static_cast<int>(unit));
  }
}

void TrainingStep::explain_non_finite(std::int64_t step, const NextBatch& next_batch,
                                      const Verdict& verdict) {
  Diagnosis diagnosis(model_, diagnosis_exchange_);
  diagnosis.look_at_slices();
  diagnosis.watch_gradients();
  accumulate_gradients(step, next_batch);
  diagnosis.stop_watching(model_.loss_sum());
  throw TrainingError("{}", diagnosis.explain(step, verdict.loss, verdict.norm));
}

}  // namespace sherd::engine
