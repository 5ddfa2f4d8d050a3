/// Decides when a training saves: the engine's side of a save, on one rank.
///
/// All ranks coordinate a save, with one exchange per step. In `after_step` they share the progress
/// of their writers (checkpoint/writer.h), and every rank draws the same conclusion. A failed save
/// is reported and discarded, and training continues. The run ends with an error that names the
/// newest good checkpoint in three cases: it was the last save of the run, too many saves have
/// failed in a row, or another run now owns the output folder.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "checkpoint/writer.h"
#include "engine/report/metrics.h"
#include "engine/saving/resuming.h"

namespace sherd::engine {

enum class SaveWish {
  kIfDue,  ///< as the interval says
  kBegin,  ///< begins a save as if it were due
  kMust    ///< saves regardless of the interval; the run can't continue without it
};

/// The outcome of a step, as far as saving is concerned.
struct StepOutcome {
  SaveWish wish = SaveWish::kIfDue;
  std::optional<double> validation_loss;  ///< if it was evaluated after this step
  BestEvaluation best{};                  ///< of all evaluations until then
  std::vector<data::Skip> skips{};        ///< of the data, until then
};

/// Called on rank 0; each may be empty.
struct SaveEvents {
  std::function<void()> before_commit{};     ///< a DataError that it throws fails the save
  std::function<void()> before_giving_up{};  ///< the run is about to end because of failed saves
  std::function<void(const SaveMetrics&)> on_saved{};
  /// Whether retention may remove a checkpoint now; called on its thread.
  std::function<bool(const checkpoint::Checkpoint&)> may_remove{};
  /// All saves are done. Waits for what keeps `may_remove` from allowing a removal.
  std::function<void()> before_last_removal{};
};

class Saver {
 public:
  /// Acquires the staging ring. `shared` must outlive this.
  Saver(Checkpointing& shared, SaveEvents events);

  /// On rank 0: removes the remains of interrupted saves. Call it before `resume`.
  void clear_leftovers();
  /// Takes what `resume` returned, before the first step.
  void start(const Start& start);
  /// After step `step` (from 0): continues a save in progress, and begins one if due. A collective.
  /// Errors   those of a save that the run requires: DataError, TrainingError for a state that
  ///          isn't finite, LockLost.
  void after_step(std::int64_t step, const StepOutcome& outcome);
  /// After the last step: waits until everything is on disk. A collective.
  void finish();
  /// Steps done in the newest checkpoint that was loaded or committed; -1: none.
  std::int64_t newest_step() const { return newest_step_; }

 private:
  void require_own(const checkpoint::Checkpoint& checkpoint) const;
  void begin_save(std::int64_t step, const StepOutcome& outcome);
  void wait_copied();
  void saved(const checkpoint::SaveStatus& status);
  void report_removals(const checkpoint::RetentionReport& report) const;
  void advance(bool wait);
  void end_save();
  void commit();
  void failed(const checkpoint::SaveStatus& status);
  [[noreturn]] void give_up(const checkpoint::SaveFailure& failure) const;

  Checkpointing& shared_;
  const CheckpointOptions& checkpoints_;
  const sharding::Rank& rank_;
  SaveEvents events_;
  Buffer ring_;
  sharding::State owned_;
  std::unique_ptr<checkpoint::Writer> writer_;
  std::optional<checkpoint::Retention> retention_;  // rank 0
  bool saving_ = false;
  bool copied_ = false;  // on all ranks: the state may change
  bool committing_ = false;
  bool promised_ = false;  // the run can't succeed without the save in progress
  std::int64_t failed_in_a_row_ = 0;
  std::optional<checkpoint::SaveFailure> refused_commit_;  // on rank 0
  std::int64_t saving_step_ = 0;
  std::int64_t newest_step_ = -1;
  std::string base_digest_;                       // of the frozen parameters, if there are any
  std::shared_ptr<const nlohmann::json> global_;  // of the save in progress, on rank 0
};

}  // namespace sherd::engine
