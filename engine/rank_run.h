/// What one rank does from the first step to the last: train, evaluate, report.
#pragma once

#include <filesystem>

#include "core/trace.h"
#include "engine/checkpointing.h"
#include "engine/data/batcher.h"
#include "engine/device.h"
#include "engine/progress.h"
#include "engine/training_options.h"

namespace sherd::engine {

/// What all ranks of a process share. Rank 0 alone writes and prints.
struct RunContext {
  const Recipe& recipe;
  const TrainingOptions& options;
  const data::Batcher& batcher;
  const std::filesystem::path& output;
  Progress& progress;
  Trace& trace;
  const CheckpointOptions& checkpoints;
  ProductRates rates;
};

void run_rank(const RunContext& context, sharding::Rank& rank);

}  // namespace sherd::engine
