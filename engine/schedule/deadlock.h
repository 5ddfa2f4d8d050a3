/// Whether ranks that execute their lists wait for one another for ever.
///
/// Ranks take their actions in order. Sends and receives wait as channels.h says, with the strictest
/// reading: a send that finds no free slot stops its rank. What runs under this reading runs too where
/// sends go on beside the computation.
///
/// The outcome doesn't depend on who goes first: an action that can be done stays so until it is done.
#pragma once

#include "engine/schedule/validate.h"

namespace sherd::schedule {

/// Names every rank that waits and what for; its rank and position are the lowest waiting rank's.
std::optional<Violation> deadlock(const Schedule& schedule, const Channels& channels);

}  // namespace sherd::schedule
