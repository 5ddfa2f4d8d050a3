// A training step, as one rank takes it:
//
//   Pipeline::train       forwards and backwards of all micro-batches, in the order of the rank's
//                         list (without a pipeline: one micro-batch after the other); each unit's
//                         gradient is accumulated or reduced as soon as the unit's backward is done
//   reduce_step_stats     one small exchange: loss, gradient norm, and whether all is finite
//   update                (or skip, if the gradient overflowed or the step looks wrong) a rank's
//                         own slices, at stage 0 all of them; QK-clip, if asked for; then
//                         `publish`: an all-gather under the next forward at stages 1-2, nothing at
//                         0, the next gather at 3
//
// Which of it communicates, and when, is the business of ParameterGather and GradientReduction.

#include "engine/train/training_step.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace sherd::engine {
namespace {

std::vector<float> norms_of(const std::vector<ExactSum>& sums_of_squares, double loss_scale) {
  std::vector<float> norms;
  for (const ExactSum& sum : sums_of_squares) {
    norms.push_back(static_cast<float>(std::sqrt(sum.value()) / loss_scale));
  }
  return norms;
}

// NaN if any is.
float largest_of(const std::vector<float>& norms) {
  float largest = norms.front();
  for (const float norm : norms) {
    if (std::isnan(norm) || norm > largest) largest = norm;
    if (std::isnan(largest)) break;
  }
  return largest;
}

}  // namespace

TrainingStep::Counters TrainingStep::counters() const {
  return {num_updates_,       scaler_.state(),      model_.expert_counts(),
          bad_steps_.state(), num_without_targets_, reference_hash};
}

void TrainingStep::restore(const Counters& counters) {
  num_updates_ = counters.num_updates;
  scaler_.restore(counters.scaler);
  bad_steps_.restore(counters.bad_steps);
  num_without_targets_ = counters.num_without_targets;
  reference_hash = counters.reference;
  model_.set_expert_counts(counters.expert_counts);
}

StepResult TrainingStep::run(std::int64_t step, const NextBatch& next_batch,
                             const StepRequests& asked) {
  begin_own_time();
  if (source_sums_) {
    model_.set_source_of_row([this, step](std::int64_t row) { return source_of_row(step, row); });
  }
  begin_compression(step);
  accumulate_gradients(step, next_batch);
  const std::int64_t interval = options_.weight_hash_interval;
  if (interval > 0 && (step + 1) % interval == 0) compare_weights(step);
  const StepStats stats = reduce_step_stats(step, asked);
  StepResult result = stats.result;
  result.lr = optim::learning_rate(options_.lr_schedule, step);
  result.loss_scale = scaler_.scale();
  const std::int64_t updates_before = num_updates_;
  if (stats.finite && result.num_targets == 0) {
    ++num_without_targets_;
  } else if (!(scaler_.active() && !stats.finite) && is_bad(result)) {
    if (stats.finite) scaler_.clean_step();
  } else if (stats.finite) {
    update(step, stats.gradient_scale, result);
    scaler_.clean_step();
  } else if (scaler_.active()) {
    skip(result);
  } else {
    explain_non_finite(step, next_batch, stats);
  }
  if (num_updates_ == updates_before && options_.placement.published_late) {
    if (before_update) before_update();
    publish_kept(true);
  }
  if (outer_) synchronise_replicas(step + 1);
  end_own_time();
  return result;
}

// Every rank decides alike, since all have the same statistics. A step that isn't applied leaves
// parameters, moments and Adam's step count as they are.
bool TrainingStep::is_bad(StepResult& result) {
  const optim::BadSteps::Values values{result.loss, result.grad_norm};
  result.bad_step = bad_steps_.reason(values);
  if (!result.bad_step.empty()) {
    bad_steps_.skipped(result.bad_step);
    return true;
  }
  if (std::isfinite(values.loss) && std::isfinite(values.norm)) bad_steps_.applied(values);
  return false;
}

std::int64_t TrainingStep::targets_of(std::int64_t step) const {
  return num_targets ? num_targets(step) : options_.tokens_per_step(rank_.data_degree());
}

std::int64_t TrainingStep::targets_of_replica(std::int64_t step) const {
  if (!outer_) return targets_of(step);
  return num_targets_of_replica ? num_targets_of_replica(step)
                                : options_.tokens_per_step(rank_.data_degree()) /
                                      rank_.mesh.degree(sharding::kReplicateAxis);
}

int TrainingStep::replica_of(int rank) const {
  return outer_ ? rank_.mesh.coordinate(rank, sharding::kReplicateAxis) : 0;
}

// The step's gradient on every rank's slices, and the sum of this rank's token losses.
void TrainingStep::accumulate_gradients(std::int64_t step, const NextBatch& next_batch) {
  model_.train([&](int micro_batch) {
    const auto asked = std::chrono::steady_clock::now();
    const TokenBatch batch = next_batch(step, micro_batch);
    waited_for_data_ += std::chrono::steady_clock::now() - asked;
    return pass_of(step, batch);
  });
}

model::Pass TrainingStep::pass_of(std::int64_t step, const TokenBatch& batch) const {
  return {
      .inputs = batch.inputs,
      .targets = batch.targets,
      .documents = batch.documents,
      .training = true,
      .seed = options_.seed,
      .step = static_cast<std::uint32_t>(step),
      .first_row = batch.first_row,
      .gradient_scale =
          static_cast<float>(scaler_.scale() / static_cast<double>(std::max<std::int64_t>(
                                                   targets_of_replica(step), 1))),
      .teacher_ids = batch.teacher_ids,
      .teacher_probabilities = batch.teacher_probabilities,
      .balance_scale = static_cast<float>(
          scaler_.scale() / static_cast<double>(options_.num_micro_steps * rank_.data_degree())),
      .ahead = ahead_of(step, batch)};
}

// What multi-token prediction (engine/model/prediction.h) asks of a step.
std::int64_t TrainingStep::targets_ahead(std::int64_t step, std::int64_t ahead) const {
  if (num_targets_ahead) return num_targets_ahead(step, ahead);
  const std::int64_t length = options_.model.seq_length;
  return options_.tokens_per_step(rank_.data_degree()) / length * (length - ahead);
}

std::vector<std::int64_t> TrainingStep::targets_of_further_losses(std::int64_t step) const {
  const model::ModelShape& shape = options_.model;
  std::vector<std::int64_t> targets;
  for (std::int64_t ahead = 1; ahead <= shape.mtp_layers; ++ahead) {
    targets.push_back(targets_ahead(step, ahead));
  }
  if (shape.mtp_layers == 0 && shape.has_further_losses()) targets.push_back(targets_of(step));
  return targets;
}

std::vector<model::TokensAhead> TrainingStep::ahead_of(std::int64_t step,
                                                       const TokenBatch& batch) const {
  const std::int64_t layers = options_.model.mtp_layers;
  std::vector<model::TokensAhead> tokens;
  for (std::int64_t i = 0; i < layers; ++i) {
    const auto targets = std::max<std::int64_t>(targets_ahead(step, i + 1), 1);
    const double weight = options_.model.mtp_loss / static_cast<double>(layers);
    const auto place = static_cast<std::size_t>(2 * i);
    tokens.push_back({.inputs = batch.ahead.at(place),
                      .targets = batch.ahead.at(place + 1),
                      .gradient_scale = static_cast<float>(weight * scaler_.scale() /
                                                           static_cast<double>(targets))});
  }
  return tokens;
}

TrainingStep::RankStats TrainingStep::own_stats(const StepRequests& asked) {
  RankStats stats{.sum_of_squares = norm_.local_sum_of_squares().numbers(),
                  .loss_sum = model_.step_loss_sum().numbers(),
                  .stop_request = static_cast<double>(asked.stop),
                  .save_request = asked.save ? 1.0 : 0.0};
  if (!rank_.contributes_tokens()) stats.loss_sum = {};
  end_own_time();
  stats.own_ms = std::chrono::duration<double, std::milli>(std::exchange(own_time_, {})).count();
  // Read when the step's work is done: a GPU knows only then how long it waited.
  const ShardedModel::Waits waited = model_.waits();
  const auto cpu = rank_.gather().cpu_time() + rank_.reduce().cpu_time() +
                   model_.message_cpu_time() + exchange_cpu_time();
  using Milliseconds = std::chrono::duration<double, std::milli>;
  stats.exposed_comm_ms = Milliseconds(waited.all - waited_before_.all).count();
  waited_before_.by_axis.resize(waited.by_axis.size());
  for (std::size_t i = 0; i < waited.by_axis.size(); ++i) {
    const auto of_step = waited.by_axis[i].second - waited_before_.by_axis[i].second;
    stats.exposed_by_axis.at(i) = Milliseconds(of_step).count();
  }
  waited_before_ = waited;
  const std::chrono::nanoseconds for_disk = rank_.waited_for_state();
  stats.exposed_disk_ms = Milliseconds(for_disk - waited_for_disk_).count();
  waited_for_disk_ = for_disk;
  stats.data_wait_ms = Milliseconds(std::exchange(waited_for_data_, {})).count();
  stats.comm_cpu_ms = Milliseconds(cpu - cpu_before_).count();
  cpu_before_ = cpu;
  if (const auto sent = rank_.sent()) {
    const LinkBytes since = *sent - sent_before_;
    stats.sent_within = static_cast<double>(since.within);
    stats.sent_across = static_cast<double>(since.across);
    sent_before_ = *sent;
  }
  return stats;
}

// Every rank adds the same numbers, so every rank decides alike.
TrainingStep::StepStats TrainingStep::reduce_step_stats(std::int64_t step,
                                                        const StepRequests& asked) {
  TraceSpan span(rank_.compute(), "step stats");
  rank_.memory->enter(kUpdate);
  std::vector<ExactSum> sums_of_squares;  // by replica that trains apart
  ExactSum total_loss;
  StepStats stats;
  StepResult& result = stats.result;
  LinkBytes sent;
  RankStats longest;  // who waited so
  std::vector<double> own_ms;
  int rank = 0;
  for (const RankStats& of_rank : stats_.all_gather(kStepStats, own_stats(asked))) {
    const auto replica = static_cast<std::size_t>(replica_of(rank++));
    if (sums_of_squares.size() <= replica) sums_of_squares.resize(replica + 1);
    sums_of_squares[replica].add(of_rank.sum_of_squares);
    total_loss.add(of_rank.loss_sum);
    if (of_rank.exposed_comm_ms >= longest.exposed_comm_ms) longest = of_rank;
    result.comm_cpu_ms = std::max(result.comm_cpu_ms, of_rank.comm_cpu_ms);
    result.data_wait_ms = std::max(result.data_wait_ms, of_rank.data_wait_ms);
    result.exposed_disk_ms = std::max(result.exposed_disk_ms, of_rank.exposed_disk_ms);
    // Owners have no batch: they are never as busy as the others.
    if (std::ssize(own_ms) < rank_.mesh.num_workers()) own_ms.push_back(of_rank.own_ms);
    sent += {static_cast<std::int64_t>(of_rank.sent_within),
             static_cast<std::int64_t>(of_rank.sent_across)};
    result.stop =
        std::max(result.stop, static_cast<StopRequest>(static_cast<int>(of_rank.stop_request)));
    result.save_asked |= of_rank.save_request != 0.0;
  }
  if (source_sums_) result.source_losses = source_losses(step);
  result.preference = model_.preference_report();
  begin_own_time();  // of the next step's statistics
  if (own_ms.size() > 1) result.slowest = slowest_of(own_ms);
  if (rank_.sent()) result.sent = sent;
  result.exposed_comm_ms = longest.exposed_comm_ms;
  for (const auto& [axis, waited] : waited_before_.by_axis) {
    const std::size_t i = result.exposed_by_axis.size();
    result.exposed_by_axis.emplace_back(axis, longest.exposed_by_axis[i]);
  }
  const std::vector<float> norms = norms_of(sums_of_squares, scaler_.scale());
  const float own_norm = norms[static_cast<std::size_t>(replica_of(rank_.rank))];
  stats.norm = largest_of(norms);
  result.num_targets = targets_of(step);
  stats.loss =
      total_loss.value() / static_cast<double>(std::max<std::int64_t>(result.num_targets, 1));
  stats.finite = std::isfinite(stats.norm) && std::isfinite(stats.loss);
  stats.gradient_scale =
      static_cast<float>(optim::clip_scale(own_norm, options_.max_norm) / scaler_.scale());
  result.experts = model_.expert_report();
  result.stability = model_.stability_report(targets_of_further_losses(step));
  result.loss = stats.loss;
  result.grad_norm = stats.norm;
  return stats;
}

// A rank without losses sends zeros.
std::vector<std::pair<int, double>> TrainingStep::source_losses(std::int64_t step) {
  const auto num_sources = static_cast<std::size_t>(options_.num_loss_sources);
  std::vector<double> mine;
  for (const ExactSum& sum : model_.source_loss_sums()) {
    std::ranges::copy(sum.numbers(), std::back_inserter(mine));
  }
  if (!rank_.contributes_tokens()) mine.clear();
  mine.resize(num_sources * ExactSum::kNumbers);
  std::vector<ExactSum> sums(num_sources);
  for (const std::span<const double> row : source_sums_->all_gather(kSourceLosses, mine)) {
    for (std::size_t i = 0; i < num_sources; ++i) {
      sums[i].add(row.subspan(i * ExactSum::kNumbers, ExactSum::kNumbers));
    }
  }
  const std::vector<std::int64_t> targets = targets_of_sources(step);
  std::vector<std::pair<int, double>> losses;
  for (std::size_t i = 0; i < num_sources; ++i) {
    if (targets[i] == 0) continue;
    losses.emplace_back(static_cast<int>(i), sums[i].value() / static_cast<double>(targets[i]));
  }
  return losses;
}

SlowestRank slowest_of(const std::vector<double>& own_ms) {
  std::vector<double> sorted = own_ms;
  std::ranges::sort(sorted);
  const std::size_t half = sorted.size() / 2;
  const double median =
      sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2.0;
  const auto slowest = std::ranges::max_element(own_ms);
  return {static_cast<int>(slowest - own_ms.begin()), *slowest, median};
}

void TrainingStep::begin_own_time() {
  begin_ = Clock::now();
  waited_at_begin_ = model_.waits().all;
}

void TrainingStep::end_own_time() {
  const std::chrono::nanoseconds waited = model_.waits().all - waited_at_begin_;
  own_time_ += std::max(Clock::now() - begin_ - waited, std::chrono::nanoseconds(0));
}

void TrainingStep::update(std::int64_t step, float gradient_scale, StepResult& result) {
  if (before_update) before_update();
  publish_kept(true);
  TraceSpan span(rank_.compute(), "update");
  const optim::UpdateStep how{
      .lr = static_cast<float>(optim::learning_rate(options_.lr_schedule, step)),
      .update_number = ++num_updates_,
      .gradient_scale = gradient_scale};
  const ExpertReport* experts = result.experts.get();
  if (experts) model_.remember(*experts);
  result.clipped_heads = model_.num_clipped_heads(result.stability.get());
  optimizer_->prepare(rank_.compute(), how);
  for (std::size_t unit = 0; unit < model_.units().size(); ++unit) {
    optimizer_->update(rank_.compute(), static_cast<int>(unit), how);
    if (experts) model_.correct_router(static_cast<int>(unit), *experts);
    const bool clipped =
        result.clipped_heads > 0 && model_.clip_heads(static_cast<int>(unit), *result.stability);
    if (update_copies(static_cast<int>(unit), step) || options_.placement.published_late) continue;
    model_.publish(static_cast<int>(unit), optimizer_->rounds_parameters() && !clipped,
                   optimizer_->updating(static_cast<int>(unit)));
  }
}

}  // namespace sherd::engine
