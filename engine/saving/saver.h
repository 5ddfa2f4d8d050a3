/// When a training saves: the engine's side of a save, on one rank.
///
/// A save is one conversation of all ranks, a sentence per step: in `after_step` they tell one
/// another how far their writers are (checkpoint/writer.h), and everyone draws the same conclusion.
/// A save that fails is reported and discarded, and training goes on; the run ends with an error that
/// names the newest good checkpoint where it was the last save of the run, or so many have failed
/// in a row, or the output folder is another run's now.
#pragma once

#include <optional>

#include "checkpoint/writer.h"
#include "engine/report/metrics.h"
#include "engine/saving/resuming.h"

namespace sherd::engine {

/// What a step has come to, as far as saving is concerned.
struct StepOutcome {
  bool save_now = false;                  ///< whether or not the interval has passed
  std::optional<double> validation_loss;  ///< if it was evaluated after this step
  BestEvaluation best{};                  ///< of all evaluations until then
};

/// Called on rank 0; each may be empty.
struct SaveEvents {
  std::function<void()> before_commit{};     ///< what it throws as a DataError fails the save
  std::function<void()> before_giving_up{};  ///< the run is about to end because saves fail
  std::function<void(const SaveMetrics&)> on_saved{};
};

class Saver {
 public:
  /// Acquires the staging ring. `shared` has to outlive this.
  Saver(Checkpointing& shared, SaveEvents events);

  /// On rank 0: removes what saves that were cut short have left. Before `resume`.
  void clear_leftovers();
  /// What `resume` returned, before the first step.
  void start(const Start& start);
  /// After step `step` (from 0): goes on with a save that is under way, begins one if it is due. A collective.
  /// Errors   that of the save which the run can't do without: DataError, TrainingError for a state
  ///          that isn't finite, LockLost.
  void after_step(std::int64_t step, const StepOutcome& outcome);
  /// After the last step: waits until everything is on disk. A collective.
  void finish();
  /// Steps done in the newest checkpoint that was loaded or committed; -1: none.
  std::int64_t newest_step() const { return newest_step_; }

 private:
  void begin_save(std::int64_t step, const StepOutcome& outcome);
  void saved(const checkpoint::SaveStatus& status);
  void report_removals(const checkpoint::RetentionReport& report) const;
  void advance(bool wait);
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
  bool committing_ = false;
  bool promised_ = false;  // the run may not end well without the save that is under way
  std::int64_t failed_in_a_row_ = 0;
  std::optional<checkpoint::SaveFailure> refused_commit_;  // on rank 0
  std::int64_t saving_step_ = 0;
  std::int64_t newest_step_ = -1;
  std::string base_digest_;                       // of the frozen parameters, where there are any
  std::shared_ptr<const nlohmann::json> global_;  // of the save under way, on rank 0
};

}  // namespace sherd::engine
