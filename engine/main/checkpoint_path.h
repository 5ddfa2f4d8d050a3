/// Which checkpoint a person means.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/store/committed.h"

namespace sherd::main {

struct ChosenCheckpoint {
  std::string path;
  /// A run that goes on doesn't remove it as long as this object is there.
  std::optional<checkpoint::Checkpoint> held{};
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
/// Whatever is none of them is returned as it is: opening it says what is wrong. What its run removes before it can be
/// held is looked for again.
/// Errors   DataError if a run's folder holds no checkpoint that opens, or for best none with a loss; if a step that
///          was named isn't there and others are.
ChosenCheckpoint choose_checkpoint(const std::string& path);

}  // namespace sherd::main
