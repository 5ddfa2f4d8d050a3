/// What one rank does from the first step to the last: train, evaluate, report.
#pragma once

#include <atomic>

#include "core/trace.h"
#include "engine/data/batcher.h"
#include "engine/launch/device.h"
#include "engine/report/output_folder.h"
#include "engine/report/progress.h"
#include "engine/saving/checkpointing.h"
#include "engine/train/from_recipe.h"

namespace sherd::engine {

/// What all ranks of a process share. Rank 0 alone writes and prints.
struct RunContext {
  const Recipe& recipe;
  const TrainingOptions& options;
  const data::Batcher& batcher;
  const OutputFolder& output;
  Progress& progress;
  Trace& trace;
  const CheckpointOptions& checkpoints;
  std::atomic<bool>& has_begun;  ///< set by rank 0 when all ranks have what they begin with
  double matmul_peak = 0.0;      ///< Machine::matmul_peak: operations per second; 0: not known
};

void run_rank(const RunContext& context, sharding::Rank& rank);

}  // namespace sherd::engine
