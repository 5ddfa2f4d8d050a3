/// When a run saves and where it begins: the engine's side of checkpoints, on one rank.
///
/// A save is one conversation of all ranks, a sentence per step: in `after_step` they tell one
/// another how far their writers are (checkpoint/writer.h), and everyone draws the same conclusion.
/// A save that fails is reported and discarded, and training goes on; the run ends with an error that
/// names the newest good checkpoint where it was the last save of the run, or so many have failed
/// in a row, or the output folder is another run's now.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/store/committed.h"
#include "checkpoint/store/retention.h"
#include "checkpoint/writer.h"
#include "engine/report/metrics.h"
#include "engine/report/progress.h"
#include "engine/saving/resume_check.h"
#include "engine/saving/run_state.h"
#include "engine/saving/saved_counters.h"

namespace sherd::engine {

struct CheckpointOptions {
  std::string directory;      ///< "<output_dir>/checkpoints"
  bool saves = false;         ///< at an interval, or when a signal asks for it
  std::int64_t interval = 0;  ///< 0: at no interval
  bool async = true;
  std::int64_t max_failed_saves = 3;  ///< in a row; 0: any number
  checkpoint::RetentionPolicy keep{};
  std::string resume = "auto";
  std::string init_from;  ///< with an adapter: what it is for
  std::string adapter;    ///< a PEFT folder whose adapter the run begins with; empty: a new one
  std::int64_t max_steps = 0;
  /// What every checkpoint says of its run, and what a resume compares (resume_check.h).
  std::shared_ptr<const nlohmann::json> fingerprint;
  std::string recipe;                  ///< the resolved recipe, YAML
  std::string folder;                  ///< what its relative paths are relative to
  std::vector<char32_t> vocabulary{};  ///< of character data: what the ids mean
  checkpoint::Disk* disk = &checkpoint::posix_disk();
  const checkpoint::OutputLock* lock = nullptr;  ///< of the folder that `directory` is in
};

/// What ranks tell one another when they load or save.
struct CheckpointWord {
  double loaded = 0.0;                ///< 1: this rank found no damaged bytes
  double step = 0.0;                  ///< of the checkpoint that it loaded
  double phase = 0.0;                 ///< of its writer: checkpoint::SavePhase
  std::array<double, 4> save_uuid{};  ///< of a save that begins, drawn by rank 0: 32 bits in each
};

/// Another rank can't read what the run begins with, and says so itself. Exit 4.
class RefusedElsewhere : public Error {
 public:
  explicit RefusedElsewhere(const std::string& reason) : Error(4, reason) {}
};

/// What a step has come to, as far as saving is concerned.
struct StepOutcome {
  bool save_now = false;                  ///< whether or not the interval has passed
  std::optional<double> validation_loss;  ///< if it was evaluated after this step
  BestEvaluation best{};                  ///< of all evaluations until then
};

/// Where the blocks of a checkpoint are read into before the first step.
BufferSpec checkpoint_reading_buffer();
/// What Checkpointing acquires: the staging ring (if anything is saved), a block for reading before
/// the first step, and its exchange.
std::vector<BufferSpec> checkpoint_buffers(const TrainingOptions& options, bool saves,
                                           const sharding::ShardingPlan& plan);

class Checkpointing {
 public:
  Checkpointing(const TrainingOptions& options, const CheckpointOptions& checkpoints,
                ShardedModel& model, TrainingStep& training_step, Progress& progress);

  /// Fills model, optimizer and counters from where the options say; returns the step to begin
  /// with. A collective. A damaged checkpoint is said, and the one before it is taken.
  /// Errors   DataError if there are checkpoints and none is good, or on the rank that can't read what the run begins
  ///          with, RefusedElsewhere on the others; UsageError with `never` and
  ///          checkpoints there, or if the checkpoint is of another model, batch or data.
  std::int64_t begin();
  /// Whether the validation loss at the step that begin() returned is known already.
  bool begun_evaluated() const { return begun_evaluated_; }
  /// Of the evaluations up to that step.
  const BestEvaluation& begun_best() const { return begun_best_; }
  /// After step `step` (from 0): goes on with a save that is under way, begins one if it is due.
  /// Errors   that of the save which the run can't do without: DataError, TrainingError for a state
  ///          that isn't finite, LockLost.
  void after_step(std::int64_t step, const StepOutcome& outcome);
  /// After the last step: waits until everything is on disk.
  void finish();
  /// Steps done in the newest checkpoint that was loaded or committed; -1: none.
  std::int64_t newest_step() const { return newest_step_; }

  /// On rank 0. Before a checkpoint is committed, and after.
  std::function<void()> before_commit;
  std::function<void()> before_giving_up;  ///< the run is about to end because saves fail
  std::function<void(const SaveMetrics&)> on_saved;

 private:
  void load_base();
  void read_together(const std::function<void()>& read);
  int first_to_refuse(const std::string& path, const std::string& problem, std::int64_t step);
  [[noreturn]] void refuse_together(int refusing, const std::string& problem);
  void begin_with(const std::string& init_from);
  void publish();
  int load(const std::string& path, bool weights_only, std::int64_t& step, std::string& problem);
  ResumeCheck compare(const checkpoint::Checkpoint& checkpoint, bool weights_only) const;
  void note_changed_bits(const checkpoint::Manifest& manifest);
  std::int64_t resume_newest();
  void begin_save(std::int64_t step, const StepOutcome& outcome);
  void saved(const checkpoint::SaveStatus& status);
  void report_removals(const checkpoint::RetentionReport& report) const;
  void advance(bool wait);
  void commit();
  void failed(const checkpoint::SaveStatus& status);
  [[noreturn]] void give_up(const checkpoint::SaveFailure& failure) const;
  void say(const std::string& text) const;

  const TrainingOptions& options_;
  CheckpointOptions checkpoints_;
  ShardedModel& model_;
  TrainingStep& training_step_;
  Progress& progress_;
  const sharding::Rank& rank_;
  Buffer ring_, reading_;
  sharding::Agreement<CheckpointWord> words_;
  sharding::State owned_;
  std::unique_ptr<Stream> copies_;  // of state; null where the memory isn't separate
  sharding::CopyState copy_;
  std::unique_ptr<checkpoint::Writer> writer_;
  std::optional<checkpoint::Retention> retention_;  // rank 0
  bool saving_ = false;
  bool committing_ = false;
  bool promised_ = false;  // the run may not end well without the save that is under way
  std::int64_t failed_in_a_row_ = 0;
  std::optional<checkpoint::SaveFailure> refused_commit_;  // on rank 0
  std::int64_t saving_step_ = 0;
  std::int64_t newest_step_ = -1;
  bool begun_evaluated_ = false;
  BestEvaluation begun_best_;
  std::string base_digest_;   // of the frozen parameters, where there are any
  std::string changed_bits_;  // of a resume on an instruction set with other bits: what to say
  std::shared_ptr<const nlohmann::json> global_;  // of the save under way, on rank 0
};

}  // namespace sherd::engine
