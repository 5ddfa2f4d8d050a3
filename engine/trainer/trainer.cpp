#include "engine/trainer/trainer.h"

#include <algorithm>
#include <filesystem>

#include "engine/data/shuffle.h"
#include "engine/saving/reference_file.h"

namespace sherd::engine {
namespace {

// The run's own file. A checkpoint that a recipe names, run/checkpoints/step-N, may be of a run in
// another folder.
std::vector<std::string> references_of(const TrainerOptions& options) {
  std::vector<std::string> paths = {options.reference};
  const std::string& resume = options.checkpoints.resume;
  if (resume == "auto" || resume == "never") return paths;
  std::filesystem::path checkpoint = std::filesystem::absolute(resume).lexically_normal();
  if (!checkpoint.has_filename()) checkpoint = checkpoint.parent_path();
  const std::filesystem::path run = checkpoint.parent_path().parent_path();
  paths.push_back((run / std::filesystem::path(options.reference).filename()).string());
  return paths;
}

// Whether a stage begins with step `step` of the data, which follows step `before` in this run.
bool begins_stage(const data::Batcher& batches, std::int64_t before, std::int64_t step) {
  const auto stage_of = [&batches](std::int64_t of_data) {
    return std::ranges::count_if(
        batches.stages(), [of_data](const auto& stage) { return stage.first_step <= of_data; });
  };
  return stage_of(before) != stage_of(step);
}

// Of what the reference's answers are.
std::uint64_t data_of(const data::Batcher& batches) {
  std::uint64_t hash = 0;
  for (int i = 0; i < batches.num_sources(); ++i) {
    hash = data::hash_of(hash, batches.source(i).dataset->fingerprint());
  }
  for (int i = 0; i < batches.num_validation_sets(); ++i) {
    hash = data::hash_of(hash, batches.validation_source(i).dataset->fingerprint());
  }
  return hash;
}

// Of all sources; the last step may begin the next epoch.
std::int64_t steps_per_epoch(const data::Batcher& batches) {
  std::int64_t sequences = 0;
  for (int i = 0; i < batches.num_sources(); ++i) sequences += batches.num_windows(i);
  const std::int64_t rows = batches.shape().global_batch_size();
  return std::max<std::int64_t>(1, (sequences + rows - 1) / rows);
}

}  // namespace

Trainer::Trainer(const TrainerOptions& options, const sharding::Rank& rank)
    : options_(options),
      rank_(rank),
      model_(options_.training, rank),
      training_step_(options_.training, model_),
      evaluation_(options_.training, model_, *options_.batches,
                  options_.evaluation_batch_size > 0
                      ? options_.evaluation_batch_size
                      : options_.batches->shape().global_batch_size()),
      checkpointing_(options_.training, options_.checkpoints, model_, training_step_,
                     options_.on_message),
      saver_(checkpointing_, options_.on_save) {
  if (model_.computes()) {
    feed_.emplace(options_.training, rank,
                  [this](std::int64_t step, std::int64_t micro_step, const data::Batch& batch) {
                    fill(step, micro_step, batch);
                  });
  }
  training_step_.num_targets = [this](std::int64_t step) {
    const data::Batcher& batches = *options_.batches;
    return options_.training.preference.active() ? batches.num_examples(batch_of(step))
                                                 : batches.num_targets(batch_of(step));
  };
  training_step_.num_targets_ahead = [this](std::int64_t step, std::int64_t ahead) {
    return options_.batches->num_targets_ahead(batch_of(step), ahead);
  };
  training_step_.num_targets_of_replica = [this](std::int64_t step) {
    const int replicas = options_.training.local_updates.num_replicas;
    return options_.batches->num_targets(
        batch_of(step), rank_.mesh.coordinate(rank_.rank, sharding::kReplicateAxis), replicas);
  };
  training_step_.steps_per_epoch = steps_per_epoch(*options_.batches);
  training_step_.source_of_row = [this](std::int64_t step, std::int64_t row) {
    const data::Batcher& batches = *options_.batches;
    return batches.place_of(batch_of(step) * batches.shape().global_batch_size() + row).source;
  };
  training_step_.targets_of_sources = [this](std::int64_t step) {
    return options_.batches->num_targets_of_sources(batch_of(step));
  };
}

Trainer::~Trainer() = default;

void Trainer::load() {
  SHERD_CHECK(!loaded_, "a trainer loads once");
  saver_.clear_leftovers();
  const Start start = resume(checkpointing_);
  require_countable(start.skips);
  saver_.start(start);
  steps_done_ = start.steps_done;
  evaluated_ = start.evaluated;
  if (steps_done_ != options_.best_from_step) best_ = start.best;
  skips_ = start.skips;
  if (options_.training.preference.has_reference()) prepare_reference();
  evaluation_.set_reference(reference_);
  if (options_.teacher) check_teacher();
  if (feed_) feed_->start(steps_done_);
  loaded_ = true;
}

void Trainer::fill(std::int64_t step, std::int64_t micro_step, const data::Batch& batch) const {
  const data::Batcher& batches = *options_.batches;
  const std::int64_t of_step = batch_of(step);
  batches.fill(of_step, micro_step, rank_.data_index(), batch);
  if (!options_.teacher || !model_.has_head()) return;
  // An epoch's last step may have rows without a sample, which come last.
  const data::BatchShape& shape = batches.shape();
  const std::int64_t first =
      of_step * shape.global_batch_size() + shape.first_row(micro_step, rank_.data_index());
  const std::int64_t count =
      std::clamp<std::int64_t>(batches.num_samples(of_step + 1) - first, 0, shape.micro_batch_size);
  options_.teacher->fill(first, count, batch);
}

// The tokens of all skips, with room for those that are trained on.
void Trainer::require_countable(const std::vector<data::Skip>& skips) const {
  const data::BatchShape& shape = options_.batches->shape();
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  std::int64_t steps = 0, tokens = 0;
  for (const data::Skip& skip : skips) steps += skip.num_steps;
  if (__builtin_mul_overflow(shape.tokens_per_step(), steps, &tokens) || tokens > kMost) {
    throw DataError("{}: the run has skipped {} steps of data, more than can be counted.",
                    options_.checkpoints.directory, steps);
  }
}

void Trainer::check_teacher() {
  const std::uint64_t hash = options_.teacher->hash();
  const std::uint64_t saved = training_step_.counters().reference;
  if (steps_done_ > 0 && saved != hash) {
    throw DataError(
        "{}: isn't the teacher's file that this run {}; name that file, or start a new run with "
        "checkpoint.init_from.",
        options_.teacher->path(), saved == 0 ? "began without" : "began with");
  }
  training_step_.reference_hash = hash;
}

// Of the weights before the first step. Every rank reads it, or has computed it.
void Trainer::prepare_reference() {
  checkpoint::Disk& disk = *options_.checkpoints.disk;
  const bool writes = options_.checkpoints.saves && rank_.rank == 0;
  const std::uint64_t data = data_of(*options_.batches);
  if (steps_done_ > 0) {
    FoundReference found = read_reference(disk, references_of(options_),
                                          {.num_answers = options_.batches->num_documents(),
                                           .data = data,
                                           .hash = training_step_.counters().reference});
    reference_ = std::move(found.values);
    if (writes && found.path != options_.reference) {
      write_reference(disk, options_.reference, reference_);
    }
    return;
  }
  if (rank_.rank == 0 && options_.on_message) {
    options_.on_message(fmt::format(
        "reference: log-probabilities of {} answers under the weights that training begins with",
        options_.batches->num_documents()));
  }
  reference_ = evaluation_.reference(options_.asked_to_stop, reference_stop_);
  if (reference_stop_ != StopRequest::kNone) return;
  training_step_.reference_hash = hash_of_reference(reference_, data);
  if (writes) write_reference(disk, options_.reference, reference_);
}

// The answers in the rows of a micro-batch.
std::vector<Answer> Trainer::answers_of(std::int64_t step, std::int64_t first_row) const {
  const data::BatchShape& shape = options_.batches->shape();
  std::vector<Answer> answers;
  for (std::int64_t row = 0; row < shape.micro_batch_size; ++row) {
    for (const data::RowDocument& document :
         options_.batches->documents_of_row(batch_of(step), first_row + row)) {
      answers.push_back({row * shape.seq_length + document.first, document.count, document.number,
                         document.is_wanted});
    }
  }
  return answers;
}

StepResult Trainer::step() {
  SHERD_CHECK(loaded_ && reference_stop_ == StopRequest::kNone, "a step before Trainer::load");
  if (options_.training.preference.active()) {
    model_.set_answers(
        [this, step = steps_done_](std::int64_t first_row) { return answers_of(step, first_row); },
        reference_);
  }
  // Another stage has other data, whose losses differ. So the window of bad_steps is empty again.
  if (steps_done_ > 0 &&
      begins_stage(*options_.batches, batch_of(steps_done_ - 1), batch_of(steps_done_))) {
    TrainingStep::Counters counters = training_step_.counters();
    counters.bad_steps.window.clear();
    training_step_.restore(counters);
  }
  const StepResult result = training_step_.run(
      steps_done_,
      [this](std::int64_t step, std::int64_t micro_step) { return feed_->next(step, micro_step); },
      {.stop = options_.asked_to_stop ? options_.asked_to_stop() : StopRequest::kNone,
       .save = options_.asked_to_save && options_.asked_to_save()});
  ++steps_done_;
  evaluated_ = false;
  validation_loss_.reset();
  return result;
}

std::int64_t Trainer::num_passes(std::int64_t num_batches) const {
  std::int64_t passes = evaluation_.num_passes(num_batches);
  if (options_.evaluates_average) passes += evaluation_.num_main_passes(num_batches);
  if (beyond_compared(num_batches) > 0) {
    passes += evaluation_.num_main_passes(*options_.compared_batches);
  }
  if (!options_.tasks) return passes;
  for (const data::Task& task : *options_.tasks) passes += evaluation_.num_task_passes(task);
  return passes;
}

// Sequences of the main set that an evaluation of so many batches reads, less those whose losses are
// compared.
std::int64_t Trainer::beyond_compared(std::int64_t num_batches) const {
  const data::Batcher& batches = *options_.batches;
  const int set = batches.main_validation();
  if (!options_.compared_batches || batches.num_validation_sets() == 0) return 0;
  if (batches.validation_source(set).num_batches >= 0) return 0;
  const std::int64_t all = batches.num_validation_windows(set);
  const std::int64_t rows = options_.evaluation_batch_size > 0
                                ? options_.evaluation_batch_size
                                : batches.shape().global_batch_size();
  const auto windows = [&](std::int64_t count) {
    return count == 0 || count > all / rows ? all : count * rows;
  };
  return windows(num_batches) - windows(*options_.compared_batches);
}

// Of the global weights, if replicas train apart.
EvaluationResult Trainer::evaluate(std::int64_t num_batches) {
  training_step_.exchange_global_weights();
  EvaluationResult result = evaluate_weights(num_batches);
  const std::int64_t beyond = beyond_compared(num_batches);
  double compared = result.loss;
  if (result.stop == StopRequest::kNone && beyond > 0) {
    const EvaluationResult of_compared =
        evaluation_.run_main(*options_.compared_batches, options_.asked_to_stop);
    compared = of_compared.loss;
    result.stop = of_compared.stop;
  }
  training_step_.exchange_global_weights();
  if (result.stop != StopRequest::kNone || beyond < 0) return result;
  // Once for each step; before the first one, nothing could be saved.
  const bool counts = steps_done_ > 0 && !(evaluated_ && best_.loss);
  evaluated_ = true;
  validation_loss_ = compared;
  if (counts) best_.add(steps_done_, compared);
  return result;
}

EvaluationResult Trainer::evaluate_weights(std::int64_t num_batches) {
  EvaluationResult result = evaluation_.run(num_batches, options_.asked_to_stop);
  for (std::size_t i = 0; options_.tasks && i < options_.tasks->size(); ++i) {
    if (result.stop != StopRequest::kNone) return result;
    result.tasks.push_back(
        evaluation_.score((*options_.tasks)[i], options_.asked_to_stop, result.stop));
  }
  if (result.stop == StopRequest::kNone && options_.evaluates_average) {
    training_step_.exchange_average();
    const EvaluationResult of_average = evaluation_.run_main(num_batches, options_.asked_to_stop);
    training_step_.exchange_average();
    result.loss_of_average = of_average.loss;
    result.stop = of_average.stop;
  }
  return result;
}

void Trainer::save_if_due() {
  save(SaveWish::kIfDue);
}

void Trainer::begin_save() {
  SHERD_CHECK(options_.checkpoints.saves, "a save that the options don't allow");
  save(SaveWish::kBegin);
}

void Trainer::save() {
  SHERD_CHECK(options_.checkpoints.saves, "a save that the options don't allow");
  save(SaveWish::kMust);
}

void Trainer::save(SaveWish wish) {
  SHERD_CHECK(loaded_, "a save before Trainer::load");
  saver_.after_step(
      steps_done_ - 1,
      {.wish = wish, .validation_loss = validation_loss_, .best = best_, .skips = skips_});
}

void Trainer::finish() {
  saver_.finish();
}

std::vector<std::int32_t> Trainer::sample(const std::vector<std::int32_t>& prompt,
                                          const SamplingOptions& options,
                                          const std::function<void()>& before_token) {
  training_step_.exchange_global_weights();
  std::vector<std::int32_t> tokens;
  if (model_.computes()) {
    Decoder decoder(model_, evaluation_.inputs());
    tokens = engine::sample(decoder, prompt, options, {}, before_token);
  }
  training_step_.exchange_global_weights();
  return tokens;
}

}  // namespace sherd::engine
