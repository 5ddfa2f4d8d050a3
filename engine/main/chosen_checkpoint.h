/// Finds the checkpoint that a command's path means.
#pragma once

#include <memory>
#include <string>

#include "engine/saving/checkpoint_path.h"
#include "sharding/processes/processes.h"

namespace sherd::main {

/// As engine::choose_checkpoint, with a note on standard error about each newer checkpoint that
/// doesn't open. In several processes, the first one chooses: a run may save meanwhile.
/// Errors   as engine::choose_checkpoint; DataError: processes read different checkpoints
engine::ChosenCheckpoint chosen_checkpoint(
    const std::string& path, const std::shared_ptr<sharding::Processes>& processes = {});

}  // namespace sherd::main
