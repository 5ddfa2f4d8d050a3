/// Finds the checkpoint that a path means.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/store/committed.h"

namespace sherd::engine {

struct ChosenCheckpoint {
  std::string path;
  /// A run that continues doesn't remove it while this object exists.
  std::optional<checkpoint::Checkpoint> held{};
  /// Newer ones in the same folder that don't open, and why.
  std::vector<checkpoint::Refusal> refused{};
};

/// The folder of one checkpoint, for any of these:
///
///   runs/x/checkpoints/step-0000000300   itself
///   runs/x/checkpoints/latest            the newest there
///   runs/x/checkpoints                   the same
///   runs/x                               the newest in its checkpoints
///   runs/x/best                          the one there with the lowest validation loss
///   runs/x/checkpoints/best              the same
///
/// Any other path is returned unchanged; opening it reports the error. If its run removes a
/// checkpoint before it can be held, it looks again.
/// Errors   DataError if a run's folder contains no checkpoint that opens, or, for best, none with
///          a loss; if a named step doesn't exist and others do.
ChosenCheckpoint choose_checkpoint(const std::string& path);

/// Whether a run whose checkpoint.resume is `path` continues its own newest checkpoint instead: it
/// began there, and has saved in `directory` since. So the same command, started again, goes on.
/// Errors   UsageError if `path` is in `directory`, and later checkpoints are, too
bool has_begun_since(const std::string& path, const std::string& directory, checkpoint::Disk& disk);

}  // namespace sherd::engine
