/// What one rank does from the first step to the last: train, evaluate, save, report.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "core/trace.h"
#include "engine/hooks/hooks.h"
#include "engine/report/metrics.h"
#include "engine/report/output_folder.h"
#include "engine/report/progress.h"
#include "engine/report/slowest_counts.h"
#include "engine/run/prepare.h"
#include "engine/saving/checkpointing.h"

namespace sherd::engine {

/// What rank 0 knows of the run when it goes from one segment to the next.
struct RunTotals {
  bool has_begun = false;
  std::int64_t first_step = 0;  ///< steps done when the run began
  /// Steps that earlier programs had done, and steps that anyone has.
  std::int64_t done_before = 0, most_done = 0;
  std::int64_t repeated_steps = 0;  ///< done although they had been done before
  /// Of each step after first_step: the time in which it trained the model.
  std::vector<double> moved_seconds{};
  double step_seconds = 0.0, data_wait_seconds = 0.0;  ///< of all steps
  SlowestCounts slowest{};                             ///< of all steps
  std::optional<RewindMetrics> rewind{};               ///< that the next trainer begins with
};

/// What all ranks of a process share. Rank 0 alone writes and prints.
struct RunContext {
  const PreparedRun& run;
  std::size_t segment = 0;  ///< that is trained
  RunTotals& totals;
  const OutputFolder& output;
  Progress& progress;
  Trace& trace;
  const CheckpointOptions& checkpoints;
  std::atomic<bool>& has_begun;  ///< set by rank 0 when all ranks have their initial state
  Hooks* hooks = nullptr;        ///< of process 0, if the recipe has any
  int first_rank = 0;            ///< of this process
  double matmul_peak = 0.0;      ///< Machine::matmul_peak: operations per second; 0: unknown

  /// The segment's.
  const Recipe& recipe() const { return run.segments[segment].recipe.values; }
  const TrainingOptions& options() const { return run.prepared[segment].options; }
  const data::Batcher& batches() const { return *run.batches[segment]; }
  std::int64_t end_step() const { return run.segments[segment].end_step; }
  bool is_last() const { return segment + 1 == run.num_segments(); }
};

/// The run isn't at its end: another segment trains the step after `steps_done` steps.
struct Continuation {
  std::int64_t steps_done = 0;
  bool is_saved = false;  ///< false: nothing was trained, as the checkpoint is another segment's
  /// Steps done before the first of too many bad steps (bad_steps.rewind_after): the run goes back.
  std::optional<std::int64_t> before_bad_steps{};
  std::vector<data::Skip> skips{};  ///< of the data, until then
};

/// Trains a segment of the run, from its checkpoint or from the beginning. Returns nothing if the
/// run ends. All ranks return the same.
std::optional<Continuation> run_rank(const RunContext& context, sharding::Rank& rank);

}  // namespace sherd::engine
