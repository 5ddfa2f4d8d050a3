/// Whether ranks can execute a schedule, and whether it computes a training step: its first
/// violation.
///
/// Checks of each rank's list, position by position:
///
///   - an action is on a chunk of this rank and on a micro-batch of the step;
///   - each chunk runs each micro-batch forward once, and backward once, whole or in two halves;
///   - nothing is used before it is available: inputs (from this rank or received), the forward's
///     activations, output gradients, the input gradient's half, gathered parameters;
///   - a chunk's weight gradients ascend in micro-batches, and so do its reductions: floating-point
///   sums are then bit-identical to one rank's;
///   - messages are sent once and received once, exactly if chunks are on different ranks;
///   - a pair is a forward and a backward, and neither needs the other;
///   - no more activations are alive than planned, if a plan is given;
///   - gathered chunks are released, and gradients are reduced as often as the schedule says.
///
/// Check of all lists together: no deadlock (deadlock.h). This covers the order of messages too: a
/// receive that doesn't match its channel's oldest message waits for ever.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/schedule/channels.h"

namespace sherd::schedule {

struct Violation {
  int rank = 0;
  int position = 0;  ///< in the rank's list, from 0; its length if something is missing at the end
  std::string text;  ///< one sentence: rank, position, action, and what is wrong
};

struct Rules {
  Channels channels{};
  /// Per rank, the maximum number of (chunk, micro-batch) with activations at a time: from the
  /// forward to the end of the backward or of the input gradient. Empty: any number.
  std::vector<int> most_activations{};
};

/// The first violation: at the lowest rank's lowest position; deadlocks come last. Memory and time
/// grow with the number of actions.
std::optional<Violation> first_violation(const Schedule& schedule, const Rules& rules = {});

}  // namespace sherd::schedule
