/// A training as an object: built from options on one rank of a world. Its owner steps, evaluates
/// and saves it.
///
///   run_ranks(launch, [&](sharding::Rank& rank) {      // a thread for each: engine/launch/launch.h
///     Trainer trainer(options, rank);
///     rank.guard([&] {
///       trainer.load();
///       while (trainer.steps_done() < 1000) {
///         const StepResult result = trainer.step();
///         if (trainer.steps_done() % 100 == 0) trainer.evaluate(20);
///         trainer.save_if_due();
///       }
///       trainer.finish();
///     });
///   });
///
/// All ranks of the world make the same calls in the same order. Each call is a collective and
/// returns the same result on all of them. Calls on one rank come from one thread, inside
/// Rank::guard.
///
/// What it leaves alone   It handles no signals, prints nothing, ends no process, and writes no
///                        files except checkpoints and `reference`: results are returned, messages go to
///                        `on_message`, and errors are thrown. `asked_to_stop` says whether the
///                        owner wants it to end.
/// Several at a time      Trainers of one process share no state. Each world has its own ranks,
///                        threads and memory, and its results are bit-identical to running alone.
///                        Two that save need directories of their own.
/// Memory                 From Rank::memory: the rank's plan (engine/plan) lists what a Trainer
///                        acquires. It acquires all of it when constructed.
/// Bits                   As in a run of the program with the same options: the same losses,
///                        weights and checkpoints.
/// Errors                 UsageError, DataError, PeerError, TrainingError (core/error.h).
///                        Rank::guard then ends the other ranks; the trainers of that world can't
///                        be used further.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/data/batcher.h"
#include "engine/data/task.h"
#include "engine/distillation/teacher_file.h"
#include "engine/generate/sample.h"
#include "engine/saving/saver.h"
#include "engine/train/evaluation.h"
#include "engine/train/token_feed.h"
#include "engine/train/training_step.h"

namespace sherd::engine {

struct TrainerOptions {
  TrainingOptions training;
  /// The tokens that every rank sees. Its shape defines the number of sequences of a step. Ranks may
  /// share it.
  std::shared_ptr<const data::Batcher> batches;
  /// Sequences of the batches that evaluations count; 0: as many as a step has.
  std::int64_t evaluation_batch_size = 0;
  /// Losses are compared, and kept with checkpoints, over so many batches of the main set (0: all of
  /// it). None: over as many as each evaluation has.
  std::optional<std::int64_t> compared_batches{};
  /// Where training begins, and when and where it saves. Without `saves` it only loads.
  CheckpointOptions checkpoints{};

  /// The best evaluation counts from here on if training begins with these steps done: the
  /// sequences before have another length. -1: nowhere.
  std::int64_t best_from_step = -1;
  bool evaluates_average = false;  ///< evaluations also compute the average's loss
  /// Questions that evaluations also answer; ranks may share them. Null: none.
  std::shared_ptr<const std::vector<data::Task>> tasks{};
  /// With a loss on answers that has a reference: the file of it (engine/saving/reference_file.h),
  /// which `load` writes before the first step and reads before later ones.
  std::string reference{};
  /// With TrainingOptions::model.teacher: what it found likely for these samples; ranks share it.
  std::shared_ptr<const TeacherFile> teacher{};
  AskedToStop
      asked_to_stop{};  ///< called by each rank once per step, and before each evaluation pass
  AskedToSave asked_to_save{};  ///< called by each rank once per step
  OnMessage on_message{};       ///< about checkpoints: loaded, saved, refused
  SaveEvents on_save{};
};

class Trainer {
 public:
  /// Acquires all memory, and draws the initial weights.
  Trainer(const TrainerOptions& options, const sharding::Rank& rank);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Call it once, before anything else. Loads parameters, optimizer, counters and the position in
  /// the data as `checkpoints` says (resume, init_from). If there is nothing to load, training
  /// begins with step 0. Ranks, stage and mesh may differ from those that saved.
  /// Errors   as `resume` (engine/saving/resuming.h); DataError: a reference or a teacher's file that
  ///          isn't this run's; more skipped data than can be counted.
  ///          If it was asked to stop meanwhile, steps_done is 0 and `reference_stop` says so.
  void load();

  /// The request that ended the computation of the reference in `load`, so that no step is possible.
  StopRequest reference_stop() const { return reference_stop_; }

  /// Steps of the whole training, including those before `load`.
  std::int64_t steps_done() const { return steps_done_; }
  /// Whether the validation loss after that many steps is known: from `evaluate`, or from the
  /// checkpoint.
  bool evaluated() const { return evaluated_; }
  /// The lowest loss of all evaluations so far, including those before `load`.
  const BestEvaluation& best() const { return best_; }
  /// Data that this training has skipped (checkpoints.new_skips), including before `load`.
  const std::vector<data::Skip>& skips() const { return skips_; }
  /// Steps in a row, up to the last one, that weren't applied because they were bad.
  std::int64_t bad_steps_in_a_row() const { return training_step_.counters().bad_steps.in_a_row; }
  /// Steps done in the newest checkpoint that was loaded or committed; -1: none.
  std::int64_t newest_checkpoint() const { return saver_.newest_step(); }

  /// The next training step. `stop` and `save_asked` in the result are requests that some rank
  /// received; the step is complete nevertheless.
  /// Errors   as TrainingStep::run
  StepResult step();

  /// The losses on the first `num_batches` batches of the validation sets (0: all of them), and the
  /// scores of the tasks; of the global weights if replicas train apart, as of `sample`. The next
  /// save records the main set's, and `best` counts it, except before the first step. If these are
  /// more than TrainerOptions::compared_batches, the loss over those is measured too and kept
  /// instead; if they are fewer, nothing is kept. If `stop` in the result is set, the evaluation was
  /// aborted, and nothing of it is kept.
  EvaluationResult evaluate(std::int64_t num_batches = 0);
  /// Number of forward passes of evaluate(num_batches), to estimate its duration.
  std::int64_t num_passes(std::int64_t num_batches) const;

  /// Call it after every step. Continues a save in progress, and begins one if the interval says
  /// so. With `async`, it returns while files are being written.
  /// Errors   those of saves that fail too often, or of the last save (engine/saving/saver.h)
  void save_if_due();
  /// The same, and a save begins in any case, as it does at the interval. `saves` must be set.
  void begin_save();
  /// Saves the current state, regardless of the interval, and returns when the checkpoint is
  /// complete on disk. `saves` must be set.
  /// Errors   those of the save
  void save();
  /// Returns when everything is on disk.
  void finish();

  /// Extends `prompt` by tokens that the model draws; engine/generate/sample.h.
  std::vector<std::int32_t> sample(const std::vector<std::int32_t>& prompt,
                                   const SamplingOptions& options,
                                   const std::function<void()>& before_token = {});

  const TrainerOptions& options() const { return options_; }
  ShardedModel& model() { return model_; }
  const TrainingStep& training_step() const { return training_step_; }

 private:
  void save(SaveWish wish);
  EvaluationResult evaluate_weights(std::int64_t num_batches);
  std::int64_t beyond_compared(std::int64_t num_batches) const;
  void require_countable(const std::vector<data::Skip>& skips) const;
  void prepare_reference();
  void check_teacher();
  void fill(std::int64_t step, std::int64_t micro_step, const data::Batch& batch) const;
  std::vector<Answer> answers_of(std::int64_t step, std::int64_t first_row) const;
  std::int64_t batch_of(std::int64_t step) const {
    return options_.training.overfit_one_batch
               ? options_.batches->first_step()
               : data::data_step(step, options_.batches->first_step(), skips_);
  }

  const TrainerOptions options_;
  const sharding::Rank& rank_;
  ShardedModel model_;
  TrainingStep training_step_;
  Evaluation evaluation_;
  Checkpointing checkpointing_;
  Saver saver_;
  std::optional<TokenFeed> feed_;  // none on an owner
  bool loaded_ = false;
  StopRequest reference_stop_ = StopRequest::kNone;
  std::int64_t steps_done_ = 0;
  bool evaluated_ = false;
  std::optional<double> validation_loss_;  // after steps_done_ steps, if `evaluate` has computed it
  BestEvaluation best_;
  std::vector<data::Skip> skips_;
  std::vector<double> reference_;  // by document
};

}  // namespace sherd::engine
