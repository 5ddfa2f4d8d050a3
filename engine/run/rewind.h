/// Goes back to a checkpoint after bad steps, and skips data (bad_steps.rewind_after).
#pragma once

#include <string>

#include "engine/recipe/recipe.h"
#include "engine/run/rank_run.h"
#include "sharding/processes/processes.h"

namespace sherd::engine {

struct Rewind {
  std::string checkpoint;  ///< folder
  std::int64_t step = 0;   ///< of the checkpoint
  /// All that this run has skipped. Skips after the checkpoint count from it on, so that data that
  /// were bad, or that an earlier rewind has passed, don't come again.
  std::vector<data::Skip> skips;
  RewindMetrics metrics;
  std::string text;  ///< for the user
};

/// Where a run goes back to that has done `from.steps_done` steps. All processes take process 0's
/// word for which checkpoints there are. `segments`: the first step of each.
///
/// What is skipped is the data of steps after the checkpoint, as the plan of the run's stages has
/// them. Each segment skips its own part, and continues with further data of its last stage. The
/// next segment begins where it would have.
/// Errors   TrainingError if none is old enough
Rewind rewind_of(const Recipe& recipe, const Continuation& from,
                 const std::vector<std::int64_t>& segments, checkpoint::Disk& disk,
                 sharding::Processes* processes);

/// Removes the checkpoints after step `step`, newest first: the run won't be at their states again.
/// One that somebody reads gets another name instead. Called by process 0. `lock` is checked before
/// each.
/// Errors   DiskError, LockLost
void remove_later_checkpoints(const std::string& directory, std::int64_t step,
                              checkpoint::Disk& disk, const checkpoint::OutputLock* lock);

}  // namespace sherd::engine
