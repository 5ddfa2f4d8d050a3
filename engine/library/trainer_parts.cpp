#include "engine/library/trainer_parts.h"

#include <chrono>
#include <filesystem>

#include "checkpoint/store/step_directory.h"
#include "engine/generate/text_stream.h"
#include "engine/huggingface/model_files.h"
#include "engine/launch/device.h"
#include "engine/library/recipe_request.h"
#include "engine/library/sampling.h"
#include "engine/run/run_setup.h"

namespace sherd::v0 {
namespace {

void refuse_what_only_a_program_does(const engine::Recipe& recipe) {
  if (recipe.hooks.any()) {
    throw sherd::UsageError(
        "hooks: only the program runs commands (sherd train); leave the block out, and use the "
        "library's callbacks.");
  }
  if (recipe.bad_steps.rewind_after > 0) {
    throw sherd::UsageError(
        "bad_steps.rewind_after is {}: only the program goes back to a checkpoint (sherd train); "
        "set it to 0, and load a checkpoint with checkpoint.resume.",
        recipe.bad_steps.rewind_after);
  }
}

StepMetrics metrics_of(const engine::StepResult& result) {
  return {.loss = result.loss,
          .grad_norm = static_cast<double>(result.grad_norm),
          .lr = result.lr,
          .num_targets = result.num_targets,
          .exposed_comm_ms = result.exposed_comm_ms,
          .skipped = result.skipped,
          .loss_scale = result.loss_scale,
          .not_applied = result.bad_step};
}

Evaluation evaluation_of(std::int64_t step, const engine::EvaluationResult& result) {
  Evaluation evaluation{.step = step, .loss = result.loss, .num_tokens = result.num_tokens};
  for (const auto& set : result.sets) {
    evaluation.sets.push_back({set.name, set.loss, set.num_tokens, set.bits_per_byte()});
  }
  for (const auto& task : result.tasks) {
    evaluation.tasks.push_back({task.name, task.acc(), task.acc_norm(), task.num_questions});
  }
  evaluation.loss_of_average = result.loss_of_average;
  return evaluation;
}

}  // namespace

TrainerParts::TrainerParts(const Recipe& recipe, const TrainerOptions& options)
    : on_message_(options.on_message) {
  const engine::ResolvedRecipe written = resolved(recipe, /*reads_data=*/true);
  refuse_what_only_a_program_does(written.values);
  checkpoint::Disk& disk = checkpoint::posix_disk();
  machine_ = engine::choose_machine(written.values);
  run_ = engine::prepare(written, *machine_, disk);
  if (!this->recipe().checkpoint.saves()) {
    checkpoints_ = engine::loading_options(*run_, disk);
    open();
    return;
  }
  folder_.emplace(disk, this->recipe().run.output_dir);
  try {
    checkpoints_ = engine::checkpoint_options(*run_, *folder_);
    engine::prepare_output(*run_, *folder_);
    open();
    engine::keep_model_files(this->recipe(), *folder_);
    folder_->replace("recipe.yaml", checkpoints_.recipe);
  } catch (...) {
    std::vector<std::string> own = huggingface::kept_names();
    own.insert(own.end(), {"checkpoints", "recipe.yaml"});
    world_.reset();
    folder_->take_back(own);
    throw;
  }
}

TrainerParts::InUse::InUse(TrainerParts& parts) : parts_(parts) {
  const std::lock_guard lock(parts_.mutex_);
  const std::thread::id own = std::this_thread::get_id();
  if (parts_.num_calls_ > 0 && parts_.user_ != own) {
    throw sherd::UsageError("trainer: another thread uses it; wait until its call has returned.");
  }
  parts_.user_ = own;
  ++parts_.num_calls_;
}

TrainerParts::InUse::~InUse() {
  const std::lock_guard lock(parts_.mutex_);
  --parts_.num_calls_;
}

TrainerParts::~TrainerParts() {
  try {
    if (world_)
      world_->run([](engine::Trainer& trainer, const sharding::Rank&) { trainer.finish(); });
  } catch (const std::exception&) {  // `finish` reports it to who wants to know
  }
}

void TrainerParts::open() {
  checkpoint::Disk& disk = checkpoint::posix_disk();
  for (const std::string& note : run_->resolved.notes) messages_.push_back(note);
  if (run_->too_large) messages_.push_back("warning: " + *run_->too_large);
  engine::prepare_offload(*run_, disk,
                          [this](const std::string& text) { messages_.push_back(text); });
  std::int64_t steps = 0;
  if (run_->num_segments() > 1) steps = engine::probable_steps(recipe(), disk);
  start(run_->segment_after(steps));
  // The checkpoint that was good is another segment's.
  while (run_->segment_after(now_.steps_done) != segment_)
    start(run_->segment_after(now_.steps_done));
}

void TrainerParts::start(std::size_t segment) {
  world_.reset();
  segment_ = segment;
  engine::TrainerOptions options = engine::segment_trainer(*run_, segment, checkpoints_);
  options.on_message = [this](const std::string& text) {
    const std::lock_guard lock(mutex_);
    messages_.push_back(text);
  };
  world_ = std::make_unique<library::RankWorld>(
      engine::planned_launch(*run_, segment, machine_, checkpoint::posix_disk()),
      std::move(options));
  on_ranks([](engine::Trainer& trainer, const sharding::Rank&) { trainer.load(); });
  has_stepped_ = false;
}

void TrainerParts::go_to_next_segment() {
  const std::size_t next = run_->segment_after(now_.steps_done);
  if (next == segment_) return;
  on_ranks([](engine::Trainer& trainer, const sharding::Rank&) {
    trainer.save();
    trainer.finish();
  });
  checkpoints_.resume = "auto";
  start(next);
}

void TrainerParts::on_ranks(const library::RankWorld::Work& work) {
  try {
    world_->run([&](engine::Trainer& trainer, const sharding::Rank& rank) {
      work(trainer, rank);
      if (rank.rank != 0) return;
      now_ = {trainer.steps_done(), trainer.evaluated(), trainer.best(),
              trainer.newest_checkpoint()};
    });
  } catch (...) {
    deliver_messages();
    throw;
  }
  deliver_messages();
}

void TrainerParts::deliver_messages() {
  std::vector<std::string> messages;
  {
    const std::lock_guard lock(mutex_);
    messages.swap(messages_);
  }
  for (const std::string& message : messages) {
    if (on_message_) on_message_(message);
  }
}

bool TrainerParts::evaluation_is_due() const {
  // An evaluation of a checkpoint that is loaded may be in it.
  if (!has_stepped_) return rules().evaluates_first(now_.steps_done, now_.evaluated);
  return !now_.evaluated && rules().evaluation_is_due(now_.steps_done);
}

StepMetrics TrainerParts::step() {
  if (steps_done() >= max_steps()) {
    throw sherd::UsageError(
        "all {} steps of the recipe are done; raise training.max_steps to train on.", max_steps());
  }
  go_to_next_segment();
  engine::StepResult result;
  const auto begin = std::chrono::steady_clock::now();
  on_ranks([&result](engine::Trainer& trainer, const sharding::Rank& rank) {
    engine::StepResult own = trainer.step();
    if (rank.rank == 0) result = std::move(own);
  });
  has_stepped_ = true;
  StepMetrics metrics = metrics_of(result);
  metrics.step = now_.steps_done;
  metrics.tokens = run_->batches[segment_]->num_tokens(now_.steps_done);
  metrics.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return metrics;
}

Evaluation TrainerParts::evaluate(std::optional<std::int64_t> num_batches) {
  if (num_batches && *num_batches < 0) {
    throw sherd::UsageError("evaluate: {} batches; expected 0 (all of them) or more.",
                            *num_batches);
  }
  if (!rules().validates()) {
    throw sherd::UsageError(
        "evaluate: the recipe has no validation data; set data.validation_fraction or "
        "data.validation_path.");
  }
  go_to_next_segment();
  const std::int64_t batches =
      num_batches ? *num_batches : rules().batches_of_eval(now_.steps_done);
  engine::EvaluationResult result;
  on_ranks([&](engine::Trainer& trainer, const sharding::Rank& rank) {
    engine::EvaluationResult own = trainer.evaluate(batches);
    if (rank.rank == 0) result = std::move(own);
  });
  return evaluation_of(now_.steps_done, result);
}

void TrainerParts::save_if_due() {
  if (!has_stepped_) return;  // what was loaded is on disk
  on_ranks([](engine::Trainer& trainer, const sharding::Rank&) { trainer.save_if_due(); });
}

std::string TrainerParts::save() {
  if (!saves()) {
    throw sherd::UsageError(
        "save: the recipe saves nothing; set checkpoint.interval, or checkpoint.on_interrupt: "
        "true.");
  }
  if (now_.steps_done == 0) {
    throw sherd::UsageError("save: nothing is trained yet; a checkpoint has at least one step.");
  }
  if (has_stepped_ || now_.newest_checkpoint != now_.steps_done || newest_checkpoint().empty()) {
    on_ranks([](engine::Trainer& trainer, const sharding::Rank&) { trainer.save(); });
  }
  return newest_checkpoint();
}

void TrainerParts::finish() {
  on_ranks([](engine::Trainer& trainer, const sharding::Rank&) { trainer.finish(); });
}

std::string TrainerParts::newest_checkpoint() const {
  if (now_.newest_checkpoint < 0) return "";
  const std::string path =
      checkpoints_.directory + "/" + checkpoint::step_directory_name(now_.newest_checkpoint);
  std::error_code error;  // what was loaded may be another run's
  return std::filesystem::exists(path, error) ? path : "";
}

void TrainerParts::evaluate_if_due(const TrainCallbacks& callbacks) {
  if (!evaluation_is_due()) return;
  const Evaluation evaluation = evaluate({});
  if (callbacks.on_evaluation) callbacks.on_evaluation(evaluation);
}

void TrainerParts::train(const TrainCallbacks& callbacks) {
  evaluate_if_due(callbacks);
  while (!is_done()) {
    const StepMetrics metrics = step();
    if (callbacks.on_step && !callbacks.on_step(metrics)) {
      recipe().checkpoint.on_interrupt ? static_cast<void>(save()) : save_if_due();
      break;
    }
    evaluate_if_due(callbacks);
    const bool now = stops_early() && recipe().checkpoint.interval > 0;
    now ? static_cast<void>(save()) : save_if_due();
  }
  finish();
}

std::string TrainerParts::sample(const std::string& prompt, const SampleOptions& options) {
  const data::TokenText& text = run_->dataset().text();
  std::vector<std::int32_t> ids = text.ids(prompt);
  if (ids.empty()) ids = {0};
  const engine::SamplingOptions sampling = library::sampling_of(options);
  std::vector<std::int32_t> tokens;
  on_ranks([&](engine::Trainer& trainer, const sharding::Rank& rank) {
    std::vector<std::int32_t> own = trainer.sample(ids, sampling);
    if (rank.rank == 0) tokens = std::move(own);
  });
  // A tokenizer may drop the first space of a text, so the tokens are decoded with the prompt.
  return engine::text_after(text.exact_text(ids), text.exact_text(tokens));
}

}  // namespace sherd::v0
