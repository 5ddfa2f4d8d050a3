/// What one rank does from the first step to the last: train, evaluate, save, report.
#pragma once

#include <atomic>

#include "core/trace.h"
#include "engine/hooks/hooks.h"
#include "engine/report/output_folder.h"
#include "engine/report/progress.h"
#include "engine/run/prepare.h"
#include "engine/saving/checkpointing.h"

namespace sherd::engine {

/// What all ranks of a process share. Rank 0 alone writes and prints.
struct RunContext {
  const PreparedRun& run;
  const OutputFolder& output;
  Progress& progress;
  Trace& trace;
  const CheckpointOptions& checkpoints;
  std::atomic<bool>& has_begun;  ///< set by rank 0 when all ranks have their initial state
  Hooks* hooks = nullptr;        ///< of process 0, if the recipe has any
  int first_rank = 0;            ///< of this process
  double matmul_peak = 0.0;      ///< Machine::matmul_peak: operations per second; 0: unknown

  const Recipe& recipe() const { return run.resolved.values; }
};

void run_rank(const RunContext& context, sharding::Rank& rank);

}  // namespace sherd::engine
