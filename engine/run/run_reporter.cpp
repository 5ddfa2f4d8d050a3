#include "engine/run/run_reporter.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "engine/launch/process_age.h"
#include "engine/launch/stop_signals.h"
#include "engine/preference/answers.h"
#include "engine/train/expert_statistics.h"
#include "engine/train/stability_statistics.h"
#include "kernels/isa.h"
#include "kernels/libraries.h"

namespace sherd::engine {
namespace {

std::string why_it_stops_early(const BestEvaluation& best) {
  return fmt::format(
      "the validation loss hasn't been below {:.4f}, that of step {}, in {} "
      "evaluation{} (training.early_stopping_patience)",
      best.loss.value_or(std::nan("")), best.step, best.evaluations_since,
      best.evaluations_since == 1 ? "" : "s");
}

// How evenly the tokens of a step are dealt.
ExpertMetrics expert_metrics(const ExpertReport& report) {
  ExpertMetrics metrics{report.balance_loss, report.z_loss};
  for (const auto& [layer, counts] : report.layers) {
    std::int64_t sum = 0, idle = 0;
    for (const std::int64_t count : counts) {
      sum += count;
      idle += count == 0 ? 1 : 0;
    }
    const auto [least, most] = std::ranges::minmax(counts);
    metrics.layers.push_back(
        {layer, least, most, static_cast<double>(sum) / static_cast<double>(counts.size()), idle});
  }
  return metrics;
}

std::optional<StepMetrics::AttentionLogits> attention_logits(const StabilityReport& report) {
  if (report.max_logits.empty()) return std::nullopt;
  const auto [layer, head, value] = report.largest_logit();
  StepMetrics::AttentionLogits logits{static_cast<double>(value), layer, head};
  for (const std::vector<float>& heads : report.max_logits) {
    logits.of_layers.push_back(static_cast<double>(*std::ranges::max_element(heads)));
  }
  return logits;
}

}  // namespace

RunReporter::RunReporter(const RunContext& context, const sharding::Rank& rank)
    : context_(context),
      recipe_(context.recipe()),
      rank_(rank),
      time_left_(recipe_.training.gradient_accumulation_steps) {}

std::int64_t RunReporter::tokens_of(std::int64_t step) const {
  return context_.batches().num_tokens(step + 1) - context_.batches().num_tokens(step);
}

SaveEvents RunReporter::save_events() {
  SaveEvents events{
      .before_commit = [this] { metrics_->sync(); },
      .before_giving_up =
          [this] {
            try {
              metrics_->sync();
            } catch (const Error&) {  // the run ends with the save's reason, often the same
            }
          },
      .on_saved =
          [this](const SaveMetrics& save) {
            metrics_->write(save);
            if (context_.hooks) context_.hooks->saved(save.saved);
          }};
  if (recipe_.hooks.on_save.empty()) return events;
  events.may_remove = [this](const checkpoint::Checkpoint& found) {
    return context_.hooks->may_remove(found);
  };
  events.before_last_removal = [this] { context_.hooks->wait_for_saves(); };
  return events;
}

void RunReporter::begin(std::int64_t first_step, bool evaluates_first,
                        const RunSchedule& schedule) {
  first_step_ = first_step;
  schedule_ = schedule;
  const std::string path = context_.output.file("metrics.jsonl");
  checkpoint::Disk& disk = context_.output.disk();
  const auto notice = [this](const std::string& text) { say(text); };
  context_.output.lock()->check();
  const std::int64_t lost = keep_metrics_of(path, first_step, evaluates_first, disk) - first_step;
  RunTotals& totals = context_.totals;
  if (!std::exchange(totals.has_begun, true)) {
    totals.first_step = first_step;
    totals.done_before = totals.most_done = first_step + std::max<std::int64_t>(lost, 0);
  } else if (totals.rewind) {  // what was done after it is lost
    totals.first_step = std::min(totals.first_step, first_step);
    totals.moved_seconds.resize(static_cast<std::size_t>(first_step - totals.first_step));
  }
  metrics_.emplace(path, MetricsWriter::Existing::kContinue,
                   MetricsOptions{&disk, context_.output.lock(), notice});
  metrics_->wait_for_room(context_.checkpoints.saves);
  if (totals.rewind) {
    metrics_->write(*totals.rewind);
    totals.rewind.reset();
  }
  if (recipe_.metrics.tensorboard) {
    curves_.emplace(disk, context_.output.file("tensorboard"), *context_.output.lock(), first_step,
                    notice);
  }
  if (context_.run.num_segments() > 1) {
    say(context_.run.segments[context_.segment].text(context_.run.resolved.values));
  }
}

void RunReporter::say_where_it_begins(bool stops_early, const BestEvaluation& best) {
  const std::int64_t max_steps = recipe_.training.max_steps;
  if (stops_early) {
    return say(fmt::format(
        "this run ended early, after step {} of {}, so nothing is trained: {}. A higher value "
        "continues it; another run.output_dir starts again.",
        first_step_, max_steps, why_it_stops_early(best)));
  }
  if (first_step_ < max_steps) {
    return context_.progress.update({.step = first_step_, .max_steps = max_steps});
  }
  say(first_step_ == max_steps
          ? fmt::format("this run is finished: all of its {} steps are done, so nothing is "
                        "trained. A higher training.max_steps continues it; another "
                        "run.output_dir starts again.",
                        max_steps)
          : fmt::format("nothing is trained: the checkpoint has {} steps, and training.max_steps "
                        "is {}.",
                        first_step_, max_steps));
}

StepMetrics RunReporter::metrics_of(std::int64_t step, const StepResult& result, double seconds,
                                    const std::vector<data::Skip>& skips) const {
  StepMetrics line;
  line.step = step + 1;
  line.loss = result.loss;
  line.grad_norm = result.grad_norm;
  line.lr = result.lr;
  line.tokens = context_.batches().num_tokens(step + 1);
  if (context_.options().separate_documents) line.loss_tokens = result.num_targets;
  // The last step of a run by epochs may have fewer.
  line.tokens_per_s = static_cast<double>(tokens_of(step)) / seconds;
  line.exposed_comm_ms = result.exposed_comm_ms;
  line.exposed_by_axis = result.exposed_by_axis;
  if (rank_.offload_home) line.exposed_disk_ms = result.exposed_disk_ms;
  line.data_wait_ms = result.data_wait_ms;
  line.comm_cpu_ms = result.comm_cpu_ms;
  if (const auto& slowest = result.slowest) {
    line.slowest = {slowest->rank, slowest->own_ms, slowest->median_ms};
  }
  line.sent = result.sent;
  if (result.stability) {
    line.z_loss = result.stability->z_loss;
    line.teacher_divergence = result.stability->teacher_divergence;
    line.mtp_loss = result.stability->mtp_loss;
    line.attention_logits = attention_logits(*result.stability);
  }
  if (result.preference) line.preference = engine::metrics_of(*result.preference);
  if (recipe_.optimizer.qk_clip_threshold > 0.0) line.clipped_heads = result.clipped_heads;
  if (result.experts) line.experts = expert_metrics(*result.experts);
  if (recipe_.loss_scaling.mode != LossScaling::Mode::kNone) {
    line.loss_scale = result.loss_scale;
    line.skipped = result.skipped;
    line.overflow = result.overflow;
  }
  line.bad_step = result.bad_step;
  const data::Batcher& batches = context_.batches();
  for (int i = 0; batches.num_sources() > 1 && i < batches.num_sources(); ++i) {
    line.source_tokens.emplace_back(batches.source(i).name, batches.tokens_of(i, step + 1, skips));
  }
  for (const auto& [source, loss] : result.source_losses) {
    line.source_losses.emplace_back(batches.source(source).name, loss);
  }
  if (rank_.compute().device() == DeviceKind::kCpu) {
    line.isa = kernels::name_of(kernels::isa());
  } else {
    line.matmul_table = kernels::measured_matmuls(cuda_stream(rank_.compute()).cuda().device);
  }
  line.peak_bytes = rank_.memory->peak_by_category();
  line.total_peak_bytes = rank_.memory->peak_bytes();
  return line;
}

void RunReporter::step(std::int64_t step, const StepResult& result, Clock::duration took,
                       const std::vector<data::Skip>& skips) {
  const double seconds = std::chrono::duration<double>(took).count();
  const StepMetrics line = metrics_of(step, result, seconds, skips);
  metrics_->write(line);
  if (curves_) curves_->write(line);
  if (result.num_targets == 0) {
    say(fmt::format("step {}: skipped, no token of it is trained on", step + 1));
  }
  if (result.skipped) {
    say(fmt::format("step {}: skipped, overflow at loss scale {}: {}", step + 1, result.loss_scale,
                    result.overflow));
  }
  if (!result.bad_step.empty()) {
    say(fmt::format("step {}: not applied: {}", step + 1, result.bad_step));
  }
  exposed_ms_ += result.exposed_comm_ms;
  for (const auto& [axis, milliseconds] : result.exposed_by_axis) {
    exposed_by_axis_[axis] += milliseconds;
  }
  exposed_disk_ms_ += result.exposed_disk_ms;
  comm_cpu_ms_ += result.comm_cpu_ms;
  if (line.slowest) context_.totals.slowest.add(*line.slowest);
  busy_seconds_ += seconds;
  ++steps_since_report_;
  tokens_since_report_ += tokens_of(step);
  time_left_.took({.steps = 1}, took);
  const bool moved = !result.skipped && result.bad_step.empty() && result.num_targets > 0;
  RunTotals& totals = context_.totals;
  const bool is_lost = step < totals.done_before;
  if (step < totals.most_done) ++totals.repeated_steps;
  totals.most_done = std::max(totals.most_done, step + 1);
  totals.step_seconds += seconds;
  totals.data_wait_seconds += result.data_wait_ms * 1e-3;
  totals.moved_seconds.push_back(moved && !is_lost ? seconds : 0.0);
  if (context_.hooks) context_.hooks->step(step + 1, result.loss);
  show_progress(step, result.loss);
}

// The first step has its own line, so the user sees at once that the run works.
void RunReporter::show_progress(std::int64_t step, double loss) {
  const std::int64_t max_steps = recipe_.training.max_steps;
  const bool stays = step == first_step_ || step + 1 == max_steps ||
                     (step + 1) % recipe_.metrics.log_interval == 0;
  constexpr std::chrono::milliseconds kBetweenMoves{100};
  if (!stays && Clock::now() - moved_ < kBetweenMoves) return;
  moved_ = Clock::now();
  const auto steps = static_cast<double>(steps_since_report_);
  ProgressUpdate update;
  update.step = step + 1;
  update.max_steps = max_steps;
  update.loss = loss;
  update.tokens_per_s = static_cast<double>(tokens_since_report_) / busy_seconds_;
  const double flops = update.tokens_per_s * flops_per_token(context_.options().model);
  if (context_.matmul_peak > 0.0) {
    matmul_peak_ = std::max(matmul_peak_, context_.matmul_peak);
    // A rate measured on a busy CPU isn't an upper bound.
    if (rank_.compute().device() == DeviceKind::kCpu) matmul_peak_ = std::max(matmul_peak_, flops);
    update.mfu = flops / matmul_peak_;
  }
  update.exposed_comm_ms = exposed_ms_ / steps;
  if (rank_.offload_home) update.exposed_disk_ms = exposed_disk_ms_ / steps;
  for (const auto& [axis, milliseconds] : exposed_by_axis_) {
    update.exposed_by_axis.emplace_back(axis, milliseconds / steps);
  }
  update.comm_cpu_ms = comm_cpu_ms_ / steps;
  update.memory_bytes = rank_.memory->peak_bytes();
  update.time_left = time_left_.of(schedule_.left(step + 1));
  if (!stays) return context_.progress.update(update);
  context_.progress.log(update);
  exposed_ms_ = exposed_disk_ms_ = comm_cpu_ms_ = busy_seconds_ = 0.0;
  exposed_by_axis_.clear();
  steps_since_report_ = 0;
  tokens_since_report_ = 0;
}

void RunReporter::evaluation(std::int64_t steps_done, const EvaluationResult& result,
                             std::int64_t num_passes, Clock::duration took) {
  time_left_.took({.passes = num_passes}, took);
  EvaluationMetrics metrics{steps_done, result.loss, result.loss_20_batches, result.num_tokens};
  metrics.val_loss_average = result.loss_of_average;
  if (result.sets.size() > 1) {
    for (const EvaluationResult::Set& set : result.sets) {
      metrics.sets.emplace_back(set.name, set.loss);
      if (const auto bits = set.bits_per_byte()) metrics.bits_of_sets.emplace_back(set.name, *bits);
    }
  }
  const auto main = static_cast<std::size_t>(context_.batches().main_validation());
  metrics.bits_per_byte = result.sets[main].bits_per_byte();
  for (const EvaluationResult::Task& task : result.tasks) {
    metrics.tasks.push_back({task.name, task.acc(), task.acc_norm(), task.num_questions});
  }
  const auto& preference = result.sets[main].preference;
  if (preference) metrics.preference = engine::metrics_of(*preference);
  metrics_->write(metrics);
  if (curves_) curves_->write(metrics);
  std::string line = fmt::format("step {}: validation loss {:.4f} over {} {}", steps_done,
                                 result.loss, result.num_tokens,
                                 !preference             ? "tokens"
                                 : preference->has_pairs ? "pairs"
                                                         : "answers");
  if (preference) {
    line += fmt::format(", reward margin {:.4f}", preference->margins);
    if (preference->has_pairs) {
      line += fmt::format(", chosen preferred in {:.1f} %", 100.0 * preference->accuracies);
    }
  }
  if (result.loss_20_batches) {
    line += fmt::format(" (20-batch estimate {:.4f})", *result.loss_20_batches);
  }
  if (result.loss_of_average) {
    line += fmt::format("; of the average {:.4f}", *result.loss_of_average);
  }
  for (const auto& [name, loss] : metrics.sets) line += fmt::format("; {} {:.4f}", name, loss);
  for (const EvaluationResult::Task& task : result.tasks) {
    line += fmt::format("; {}: {} of {} right, {} by bytes", task.name, task.num_right,
                        task.num_questions, task.num_right_by_bytes);
  }
  say(line);
  if (context_.hooks) context_.hooks->evaluation(steps_done, result.loss);
}

void RunReporter::saving_because(StopRequest stop, std::int64_t steps_done) {
  say(fmt::format(
      "{}: saving after step {}{}", asked_by(stop), steps_done,
      stop == StopRequest::kInterrupt ? "; a second Ctrl-C ends the run immediately" : ""));
}

void RunReporter::save_asked(const std::string& source, std::int64_t steps_done, bool saves) {
  say(saves ? fmt::format("{}: saving after step {}", source, steps_done)
            : fmt::format("{}: no checkpoint is saved, since checkpoint.interval is 0", source));
}

void RunReporter::saves_took(std::int64_t steps_done, Clock::duration took) {
  const bool saves = schedule_.left(steps_done).saves > schedule_.left(steps_done + 1).saves;
  time_left_.took({.saves = saves ? 1 : 0}, took);
}

void RunReporter::early_end(std::int64_t steps_done, const BestEvaluation& best) {
  metrics_->write(EarlyStopMetrics{steps_done, best.loss.value_or(std::nan("")), best.step});
  say(fmt::format("step {}: the run ends: {}", steps_done, why_it_stops_early(best)));
}

void RunReporter::end(std::int64_t steps_done, bool continues) {
  const RunTotals& totals = context_.totals;
  if (!continues && steps_done > totals.first_step) {
    const EndMetrics end{
        .step = steps_done,
        .moved_s = std::accumulate(totals.moved_seconds.begin(), totals.moved_seconds.end(), 0.0),
        .wall_s = process_age().count(),
        .repeated_steps = totals.repeated_steps,
        .data_wait_share = totals.data_wait_seconds / totals.step_seconds};
    metrics_->write(end);
    const std::string repeated =
        end.repeated_steps > 0 ? fmt::format("; {} steps had been done before", end.repeated_steps)
                               : "";
    if (const std::string slow = totals.slowest.text(); !slow.empty()) say(slow);
    say(fmt::format(
        "goodput {:.1f} %: {:.1f} of {:.1f} s moved the model{}; steps waited for data "
        "{:.2f} % of their time",
        end.goodput() * 100.0, end.moved_s, end.wall_s, repeated, end.data_wait_share * 100.0));
  }
  metrics_->sync();
}

void RunReporter::sample(std::int64_t steps_done, const std::string& text) {
  say("sample:\n" + text);
  if (curves_) curves_->write_text(steps_done, "sample", text);
}

}  // namespace sherd::engine
