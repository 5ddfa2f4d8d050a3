/// Finds the checkpoint that a path means.
#pragma once

#include <string>

namespace sherd::main {

/// The folder of one checkpoint, for any of these:
///
///   runs/x/checkpoints/step-0000000300   itself
///   runs/x/checkpoints/latest            the newest there
///   runs/x/checkpoints                   the same
///   runs/x                               the newest in its checkpoints
///   runs/x/best                          the one there with the lowest validation loss
///   runs/x/checkpoints/best              the same
///
/// Any other path is returned unchanged; opening it reports the error.
/// Errors   DataError if a run's folder contains no checkpoint that opens, or, for best, none with
///          a loss.
std::string checkpoint_path(const std::string& path);

}  // namespace sherd::main
