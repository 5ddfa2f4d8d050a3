#include "engine/run/rank_run.h"

#include <cmath>
#include <map>
#include <optional>

#include "engine/generate/sample.h"
#include "engine/report/event_file.h"
#include "engine/report/metrics.h"
#include "engine/report/time_left.h"
#include "engine/train/evaluation.h"
#include "engine/train/token_feed.h"
#include "engine/train/training_step.h"
#include "kernels/isa.h"
#include "kernels/libraries.h"

namespace sherd::engine {

namespace {

class RankRun {
 public:
  RankRun(const RunContext& context, sharding::Rank& rank)
      : context_(context),
        recipe_(context.recipe),
        rank_(rank),
        model_(context.options, rank),
        training_step_(context.options, model_),
        evaluation_(context.options, model_, context.batcher,
                    context.recipe.training.global_batch_size),
        checkpointing_(context.options, context.checkpoints, model_, training_step_,
                       context.progress),
        feed_(context.options, rank,
              [this](std::int64_t step, std::int64_t micro_step, const data::Batch& batch) {
                context_.batcher.fill(step, micro_step, rank_.data_index(), batch);
              }) {
    training_step_.num_targets = [this](std::int64_t step) {
      return context_.batcher.num_targets(step);
    };
  }

  void train() {
    first_step_ = checkpointing_.begin();
    if (rank_.rank == 0) context_.has_begun = true;
    feed_.start(first_step_);
    if (rank_.rank == 0) {
      context_.output.replace("recipe.yaml", context_.checkpoints.recipe);
      begin_metrics();
    }
    const std::int64_t max_steps = recipe_.training.max_steps;
    schedule_ = schedule();
    best_ = checkpointing_.begun_best();
    if (rank_.rank == 0) say_where_it_begins();
    if (evaluation_was_put_off()) {
      StepOutcome outcome;
      const StopRequest stop = evaluate_if_due(first_step_ - 1, outcome);
      if (stop != StopRequest::kNone) return stop_after(first_step_ - 1, stop);
      if (stops_early(first_step_)) end_early(first_step_);
    }
    steps_done_ = first_step_;
    while (steps_done_ < max_steps && !stops_early(steps_done_)) {
      const std::int64_t step = steps_done_;
      trace_if_asked(step);
      const auto step_begin = Clock::now();
      const StepResult result = training_step_.run(
          step, [this](std::int64_t s, std::int64_t m) { return feed_.next(s, m); },
          stop_request());
      if (rank_.rank == 0) report(step, result, Clock::now() - step_begin);
      StepOutcome outcome;
      StopRequest stop = result.stop;
      if (stop == StopRequest::kNone) stop = evaluate_if_due(step, outcome);
      outcome.best = best_;
      outcome.save_now = recipe_.checkpoint.saves() &&
                         (stop == StopRequest::kRequeue ||
                          (stop == StopRequest::kInterrupt && recipe_.checkpoint.on_interrupt));
      if (stops_early(step + 1)) {
        end_early(step + 1);
        outcome.save_now = recipe_.checkpoint.interval > 0;
      } else if (outcome.save_now && rank_.rank == 0) {
        context_.progress.message(fmt::format(
            "{}: saving after step {}{}", asked_by(stop), step + 1,
            stop == StopRequest::kInterrupt ? "; a second Ctrl-C ends the run immediately" : ""));
      }
      const auto save_begin = Clock::now();
      checkpointing_.after_step(step, outcome);
      const bool saves = schedule_.left(step + 1).saves > schedule_.left(step + 2).saves;
      time_left_.took({.saves = saves ? 1 : 0}, Clock::now() - save_begin);
      if (stop != StopRequest::kNone) return stop_after(step, stop);
      ++steps_done_;
    }
    checkpointing_.finish();
    if (metrics_) metrics_->sync();
    print_sample();
  }

 private:
  void begin_metrics() {
    const std::string path = context_.output.file("metrics.jsonl");
    checkpoint::Disk& disk = context_.output.disk();
    context_.output.lock()->check();
    keep_metrics_of(path, first_step_, evaluation_was_put_off(), disk);
    metrics_.emplace(path, MetricsWriter::Existing::kContinue,
                     MetricsOptions{&disk, context_.output.lock(), [this](const std::string& text) {
                                      context_.progress.message(text);
                                    }});
    metrics_->wait_for_room(context_.checkpoints.saves);
    if (recipe_.metrics.tensorboard) {
      curves_.emplace(disk, context_.output.file("tensorboard"), *context_.output.lock(),
                      first_step_,
                      [this](const std::string& text) { context_.progress.message(text); });
    }
    checkpointing_.before_commit = [this] { metrics_->sync(); };
    checkpointing_.on_saved = [this](const SaveMetrics& save) { metrics_->write(save); };
    checkpointing_.before_giving_up = [this] {
      try {
        metrics_->sync();
      } catch (const Error&) {  // the run ends with the save's reason, often the same
      }
    };
  }

  // A stop in the middle of an evaluation leaves it to whoever goes on, who evaluates before the
  // first step: each time anew until a checkpoint knows the result.
  bool evaluation_was_put_off() const {
    return first_step_ > 0 && !checkpointing_.begun_evaluated() &&
           evaluation_is_due(first_step_ - 1);
  }

  bool evaluation_is_due(std::int64_t step) const {
    const std::int64_t interval = recipe_.training.eval_interval;
    const bool last = step + 1 == recipe_.training.max_steps;
    return (last || (interval > 0 && (step + 1) % interval == 0)) &&
           context_.batcher.num_validation_windows() > 0;
  }

  // The last step needs no reason to be the last.
  bool stops_early(std::int64_t steps_done) const {
    const std::int64_t patience = recipe_.training.early_stopping_patience;
    return patience > 0 && best_.evaluations_since >= patience &&
           steps_done < recipe_.training.max_steps;
  }

  std::string why_it_stops_early() const {
    return fmt::format(
        "the validation loss hasn't been below {:.4f}, that of step {}, in {} "
        "evaluation{} (training.early_stopping_patience)",
        best_.loss.value_or(std::nan("")), best_.step, best_.evaluations_since,
        best_.evaluations_since == 1 ? "" : "s");
  }

  void end_early(std::int64_t steps_done) {
    if (rank_.rank != 0) return;
    metrics_->write(EarlyStopMetrics{steps_done, best_.loss.value_or(std::nan("")), best_.step});
    context_.progress.message(
        fmt::format("step {}: the run ends: {}", steps_done, why_it_stops_early()));
  }

  // Rank 0 alone throws: an abort from another could reach it before it has written this step.
  void stop_after(std::int64_t step, StopRequest stop) {
    checkpointing_.finish();
    if (rank_.rank != 0) return;
    metrics_->sync();
    const std::int64_t newest = checkpointing_.newest_step();
    throw_stopped(
        stop,
        fmt::format("after step {} of {}; {} is complete up to it, and {}", step + 1,
                    recipe_.training.max_steps, context_.output.file("metrics.jsonl"),
                    newest < 0 ? "there is no checkpoint"
                               : fmt::format("the newest checkpoint is that of step {}", newest)));
  }

  RunSchedule schedule() const {
    const Recipe::Training& training = recipe_.training;
    return {.max_steps = training.max_steps,
            .eval_interval = training.eval_interval,
            .save_interval = recipe_.checkpoint.interval,
            .passes_per_eval = evaluation_.num_passes(training.eval_batches),
            .passes_of_final_eval = evaluation_.num_passes(batches_of_eval(true))};
  }

  std::int64_t batches_of_eval(bool last) const {
    const bool whole = last && recipe_.training.final_eval == FinalEval::kWhole;
    return whole ? 0 : recipe_.training.eval_batches;
  }

  void say_where_it_begins() const {
    const std::int64_t max_steps = recipe_.training.max_steps;
    if (stops_early(first_step_)) {
      return context_.progress.message(fmt::format(
          "this run ended early, after step {} of {}, so nothing is trained: {}. A higher value "
          "continues it; another run.output_dir starts again.",
          first_step_, max_steps, why_it_stops_early()));
    }
    if (first_step_ < max_steps) {
      return context_.progress.update({.step = first_step_, .max_steps = max_steps});
    }
    context_.progress.message(
        first_step_ == max_steps
            ? fmt::format("this run is finished: all of its {} steps are done, so nothing is "
                          "trained. A higher training.max_steps continues it; another "
                          "run.output_dir starts again.",
                          max_steps)
            : fmt::format("nothing is trained: the checkpoint has {} steps, and training.max_steps "
                          "is {}.",
                          first_step_, max_steps));
  }

  void trace_if_asked(std::int64_t step) {
    if (rank_.rank != 0 || !recipe_.metrics.trace_steps) return;
    if (step + 1 == recipe_.metrics.trace_steps->first) context_.trace.start();
    if (step == recipe_.metrics.trace_steps->last) context_.trace.stop();
  }

  void report(std::int64_t step, const StepResult& result, Clock::duration took) {
    const std::int64_t tokens_per_step = context_.options.tokens_per_step(rank_.data_degree());
    const double seconds = std::chrono::duration<double>(took).count();
    StepMetrics line;
    line.step = step + 1;
    line.loss = result.loss;
    line.grad_norm = result.grad_norm;
    line.lr = result.lr;
    line.tokens = context_.batcher.num_samples(step + 1) * recipe_.training.seq_length;
    if (context_.options.separate_documents) line.loss_tokens = result.num_targets;
    line.tokens_per_s = static_cast<double>(tokens_per_step) / seconds;
    line.exposed_comm_ms = result.exposed_comm_ms;
    line.exposed_by_axis = result.exposed_by_axis;
    line.comm_cpu_ms = result.comm_cpu_ms;
    line.sent = result.sent;
    if (recipe_.loss_scaling.mode != LossScaling::Mode::kNone) {
      line.loss_scale = result.loss_scale;
      line.skipped = result.skipped;
      line.overflow = result.overflow;
    }
    if (rank_.compute().device() == DeviceKind::kCpu) {
      line.isa = kernels::name_of(kernels::isa());
    } else {
      line.matmul_table = kernels::measured_matmuls(cuda_stream(rank_.compute()).cuda().device);
    }
    line.peak_bytes = rank_.memory->peak_by_category();
    line.total_peak_bytes = rank_.memory->peak_bytes();
    metrics_->write(line);
    if (curves_) curves_->write(line);
    if (result.num_targets == 0) {
      context_.progress.message(fmt::format("step {}: skipped, it has no target tokens", step + 1));
    }
    if (result.skipped) {
      context_.progress.message(fmt::format("step {}: skipped, overflow at loss scale {}: {}",
                                            step + 1, result.loss_scale, result.overflow));
    }

    exposed_ms_ += result.exposed_comm_ms;
    for (const auto& [axis, milliseconds] : result.exposed_by_axis) {
      exposed_by_axis_[axis] += milliseconds;
    }
    comm_cpu_ms_ += result.comm_cpu_ms;
    busy_seconds_ += seconds;
    ++steps_since_report_;
    time_left_.took({.steps = 1}, took);
    show_progress(step, result.loss, tokens_per_step);
  }

  // The first step has a line of its own: whoever started the run sees at once that it goes.
  void show_progress(std::int64_t step, double loss, std::int64_t tokens_per_step) {
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
    update.tokens_per_s = static_cast<double>(tokens_per_step) * steps / busy_seconds_;
    const double flops = update.tokens_per_s * flops_per_token(context_.options.model);
    if (context_.matmul_peak > 0.0) {
      matmul_peak_ = std::max(matmul_peak_, context_.matmul_peak);
      // What a busy CPU was measured at doesn't bound what it reaches later.
      if (rank_.compute().device() == DeviceKind::kCpu)
        matmul_peak_ = std::max(matmul_peak_, flops);
      update.mfu = flops / matmul_peak_;
    }
    update.exposed_comm_ms = exposed_ms_ / steps;
    for (const auto& [axis, milliseconds] : exposed_by_axis_) {
      update.exposed_by_axis.emplace_back(axis, milliseconds / steps);
    }
    update.comm_cpu_ms = comm_cpu_ms_ / steps;
    update.memory_bytes = rank_.memory->peak_bytes();
    update.time_left = time_left_.of(schedule_.left(step + 1));
    if (!stays) return context_.progress.update(update);
    context_.progress.log(update);
    exposed_ms_ = comm_cpu_ms_ = busy_seconds_ = 0.0;
    exposed_by_axis_.clear();
    steps_since_report_ = 0;
  }

  StopRequest evaluate_if_due(std::int64_t step, StepOutcome& outcome) {
    if (!evaluation_is_due(step)) return StopRequest::kNone;
    const bool last = step + 1 == recipe_.training.max_steps;
    const std::int64_t batches = batches_of_eval(last);
    const auto begin = Clock::now();
    const EvaluationResult result = evaluation_.run(batches);
    if (result.stop != StopRequest::kNone) return result.stop;
    time_left_.took({.passes = evaluation_.num_passes(batches)}, Clock::now() - begin);
    outcome.validation_loss = result.loss;
    best_.add(step + 1, result.loss);
    if (rank_.rank == 0) report(step, result);
    return StopRequest::kNone;
  }

  void report(std::int64_t step, const EvaluationResult& result) {
    const EvaluationMetrics metrics{step + 1, result.loss, result.loss_20_batches,
                                    result.num_tokens};
    metrics_->write(metrics);
    if (curves_) curves_->write(metrics);
    std::string line = fmt::format("step {}: validation loss {:.4f} over {} tokens", step + 1,
                                   result.loss, result.num_tokens);
    if (result.loss_20_batches) {
      line += fmt::format(" (20-batch estimate {:.4f})", *result.loss_20_batches);
    }
    context_.progress.message(line);
  }

  void print_sample() {
    const Recipe::Training& training = recipe_.training;
    if (training.sample_tokens == 0) return;
    const data::TokenText& text = context_.batcher.dataset().text();
    std::vector<std::int32_t> prompt = text.ids(training.sample_prompt);
    if (prompt.empty()) prompt = {0};
    Decoder decoder(model_, evaluation_.inputs());
    const auto tokens = sample(decoder, prompt,
                               {.num_tokens = training.sample_tokens,
                                .temperature = training.sample_temperature,
                                .top_k = training.sample_top_k,
                                .seed = recipe_.run.seed});
    if (rank_.rank != 0) return;
    context_.progress.message("sample:\n" + text.text(tokens));
    if (curves_) curves_->write_text(steps_done_, "sample", text.text(tokens));
  }

  const RunContext& context_;
  const Recipe& recipe_;
  sharding::Rank& rank_;
  ShardedModel model_;
  TrainingStep training_step_;
  Evaluation evaluation_;
  Checkpointing checkpointing_;
  TokenFeed feed_;
  std::optional<MetricsWriter> metrics_;
  std::optional<EventFile> curves_;
  std::int64_t first_step_ = 0, steps_done_ = 0;
  BestEvaluation best_;

  RunSchedule schedule_;
  TimeLeft time_left_{recipe_.training.gradient_accumulation_steps};
  Clock::time_point moved_{};
  double exposed_ms_ = 0.0, comm_cpu_ms_ = 0.0, busy_seconds_ = 0.0;
  double matmul_peak_ = 0.0;
  std::map<std::string, double> exposed_by_axis_;
  std::int64_t steps_since_report_ = 0;
};

}  // namespace

void run_rank(const RunContext& context, sharding::Rank& rank) {
  RankRun run(context, rank);
  rank.guard([&] { run.train(); });
}

}  // namespace sherd::engine
