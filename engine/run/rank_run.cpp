#include "engine/run/rank_run.h"

#include "engine/launch/process_age.h"
#include "engine/launch/stop_signals.h"
#include "engine/run/rewind.h"
#include "engine/run/run_reporter.h"
#include "engine/run/run_rules.h"
#include "engine/run/run_setup.h"
#include "engine/run/save_requests.h"
#include "engine/trainer/trainer.h"

namespace sherd::engine {
namespace {

class RankRun {
 public:
  RankRun(const RunContext& context, sharding::Rank& rank)
      : context_(context),
        recipe_(context.recipe()),
        is_first_(rank.rank == 0),
        rules_(context.run, context.segment),
        reporter_(rank.rank == 0 ? std::make_unique<RunReporter>(context, rank) : nullptr),
        save_requests_(context.output, rank.rank == 0, rank.rank == context.first_rank,
                       [&context](const std::string& text) { context.progress.message(text); }),
        trainer_(trainer_options(), rank) {}

  std::optional<Continuation> train() {
    trainer_.load();
    if (const StopRequest stop = trainer_.reference_stop(); stop != StopRequest::kNone) {
      if (is_first_) throw_stopped(stop, "before the first step; nothing is trained");
      return std::nullopt;
    }
    if (context_.run.segment_after(trainer_.steps_done()) != context_.segment) {
      return Continuation{trainer_.steps_done(), /*is_saved=*/false};
    }
    const bool evaluates_first =
        rules_.evaluates_first(trainer_.steps_done(), trainer_.evaluated());
    if (reporter_) {
      const bool is_start = !context_.totals.has_begun;
      if (context_.totals.rewind) {  // what it goes back to is loaded
        remove_later_checkpoints(context_.checkpoints.directory, trainer_.steps_done(),
                                 context_.output.disk(), context_.output.lock());
      }
      keep_model_files(context_.run.resolved.values, context_.output);
      context_.output.replace("recipe.yaml", context_.checkpoints.recipe);
      reporter_->begin(trainer_.steps_done(), evaluates_first, schedule());
      context_.has_begun = true;
      reporter_->say_where_it_begins(stops_early(), trainer_.best());
      if (context_.hooks) {
        is_start ? context_.hooks->begin(trainer_.steps_done())
                 : context_.hooks->rewound(trainer_.steps_done());
      }
    }
    if (evaluates_first) {
      const StopRequest stop = evaluate();
      if (stop != StopRequest::kNone) {
        end_asked(stop);
        return std::nullopt;
      }
      if (stops_early() && reporter_) reporter_->early_end(trainer_.steps_done(), trainer_.best());
    }
    limits_time_ = true;
    while (trainer_.steps_done() < context_.end_step() && !stops_early()) {
      if (rewinds()) return rewind();
      trace_if_asked();
      const auto begin = RunReporter::Clock::now();
      const StepResult result = trainer_.step();
      if (reporter_) {
        reporter_->step(trainer_.steps_done() - 1, result, RunReporter::Clock::now() - begin,
                        trainer_.skips());
      }
      StopRequest stop = result.stop;
      if (stop == StopRequest::kNone && evaluation_is_due()) stop = evaluate();
      save(stop, result.save_asked);
      if (stop != StopRequest::kNone) {
        end_asked(stop);
        return std::nullopt;
      }
    }
    const bool continues = !context_.is_last() && !stops_early();
    if (continues) trainer_.save();
    note_what_is_saved();
    trainer_.finish();
    if (reporter_) reporter_->end(trainer_.steps_done(), continues);
    if (continues) return Continuation{trainer_.steps_done(), /*is_saved=*/true};
    print_sample();
    return std::nullopt;
  }

 private:
  TrainerOptions trainer_options() {
    TrainerOptions options = segment_trainer(context_.run, context_.segment, context_.checkpoints);
    options.asked_to_stop = [this] { return asked_to_stop(); };
    options.asked_to_save = [this] { return save_requests_.take(); };
    options.on_message = [this](const std::string& text) { context_.progress.message(text); };
    if (reporter_) options.on_save = reporter_->save_events();
    return options;
  }

  // A signal comes first: the scheduler that sent it waits less long. The limit doesn't end an
  // evaluation before the first step, so each start makes progress.
  StopRequest asked_to_stop() const {
    if (const StopRequest asked = stop_request(); asked != StopRequest::kNone) return asked;
    const double limit = recipe_.checkpoint.max_minutes * 60.0;
    return limits_time_ && limit > 0.0 && process_age().count() >= limit ? StopRequest::kTimeLimit
                                                                         : StopRequest::kNone;
  }

  RunSchedule schedule() const {
    const Recipe::Training& training = recipe_.training;
    return {
        .max_steps = training.max_steps,
        .eval_interval = training.eval_interval,
        .save_interval = recipe_.checkpoint.interval,
        .passes_per_eval = trainer_.num_passes(training.eval_batches),
        .passes_of_final_eval = trainer_.num_passes(rules_.batches_of_eval(training.max_steps))};
  }

  bool evaluation_is_due() const { return rules_.evaluation_is_due(trainer_.steps_done()); }
  bool stops_early() const { return rules_.stops_early(trainer_.steps_done(), trainer_.best()); }

  // A function of the training's state, so a resumed run rewinds as well.
  bool rewinds() const {
    const std::int64_t after = recipe_.bad_steps.rewind_after;
    return after > 0 && trainer_.bad_steps_in_a_row() >= after;
  }

  Continuation rewind() {
    const std::int64_t done = trainer_.steps_done();
    if (data::num_rewinds(trainer_.skips()) >= recipe_.bad_steps.max_rewinds) {
      throw TrainingError(
          "step {}: {} bad steps in a row, and the run has gone back {} times already "
          "(bad_steps.max_rewinds).",
          done, trainer_.bad_steps_in_a_row(), data::num_rewinds(trainer_.skips()));
    }
    trainer_.finish();
    if (reporter_) reporter_->end(done, /*continues=*/true);
    return {done, /*is_saved=*/false, done - trainer_.bad_steps_in_a_row(), trainer_.skips()};
  }

  StopRequest evaluate() {
    const std::int64_t batches = rules_.batches_of_eval(trainer_.steps_done());
    const auto begin = RunReporter::Clock::now();
    const EvaluationResult result = trainer_.evaluate(batches);
    if (result.stop != StopRequest::kNone) return result.stop;
    if (reporter_) {
      reporter_->evaluation(trainer_.steps_done(), result, trainer_.num_passes(batches),
                            RunReporter::Clock::now() - begin);
    }
    return StopRequest::kNone;
  }

  // After a step: what is due, and what a signal, a person or an early end asks for.
  void save(StopRequest stop, bool asked) {
    const bool saves = recipe_.checkpoint.saves();
    bool now = saves && stop != StopRequest::kNone &&
               (stop != StopRequest::kInterrupt || recipe_.checkpoint.on_interrupt);
    if (asked && reporter_) {
      reporter_->save_asked(save_requests_.source(), trainer_.steps_done(), saves);
    }
    if (stops_early()) {
      if (reporter_) reporter_->early_end(trainer_.steps_done(), trainer_.best());
      now = recipe_.checkpoint.interval > 0;
    } else if (now && reporter_) {
      reporter_->saving_because(stop, trainer_.steps_done());
    }
    const auto begin = RunReporter::Clock::now();
    if (now) {
      trainer_.save();
    } else {
      asked&& saves ? trainer_.begin_save() : trainer_.save_if_due();
    }
    if (reporter_) {
      reporter_->saves_took(trainer_.steps_done(), RunReporter::Clock::now() - begin);
    }
  }

  void note_what_is_saved() const {
    if (trainer_.newest_checkpoint() == trainer_.steps_done()) note_saved();
  }

  // Rank 0 alone throws: an abort from another could reach it before it has written this step.
  void end_asked(StopRequest stop) {
    note_what_is_saved();
    trainer_.finish();
    if (!reporter_) return;
    reporter_->end(trainer_.steps_done(), /*continues=*/false);
    const std::int64_t newest = trainer_.newest_checkpoint();
    throw_stopped(
        stop,
        fmt::format("after step {} of {}; {} is complete up to it, and {}", trainer_.steps_done(),
                    recipe_.training.max_steps, context_.output.file("metrics.jsonl"),
                    newest < 0 ? "there is no checkpoint"
                               : fmt::format("the newest checkpoint is of step {}", newest)));
  }

  void trace_if_asked() const {
    const auto& steps = recipe_.metrics.trace_steps;
    if (!reporter_ || !steps) return;
    if (trainer_.steps_done() + 1 == steps->first) context_.trace.start();
    if (trainer_.steps_done() == steps->last) context_.trace.stop();
  }

  void print_sample() {
    const Recipe::Training& training = recipe_.training;
    if (training.sample_tokens == 0) return;
    const data::TokenText& text = context_.run.dataset().text();
    std::vector<std::int32_t> prompt = text.ids(training.sample_prompt);
    if (prompt.empty()) prompt = {0};
    const auto tokens =
        trainer_.sample(prompt,
                        {.num_tokens = training.sample_tokens,
                         .temperature = training.sample_temperature,
                         .top_k = training.sample_top_k,
                         .seed = recipe_.run.seed},
                        [] { end_if_asked("during sampling; what was trained is on disk"); });
    if (reporter_) reporter_->sample(trainer_.steps_done(), text.text(tokens));
  }

  const RunContext& context_;
  const Recipe& recipe_;
  const bool is_first_;
  const RunRules rules_;
  std::unique_ptr<RunReporter> reporter_;  // on rank 0
  SaveRequests save_requests_;
  bool limits_time_ = false;
  Trainer trainer_;
};

}  // namespace

std::optional<Continuation> run_rank(const RunContext& context, sharding::Rank& rank) {
  RankRun run(context, rank);
  std::optional<Continuation> continuation;
  rank.guard([&] { continuation = run.train(); });
  return continuation;
}

}  // namespace sherd::engine
