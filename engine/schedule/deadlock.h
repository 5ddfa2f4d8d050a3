/// Whether ranks that execute their lists deadlock.
///
/// Ranks take their actions in order. Sends and receives wait as channels.h says, in the strictest
/// reading: a send that finds no free slot blocks its rank. A schedule that runs under this reading
/// also runs if sends overlap the computation.
///
/// The outcome doesn't depend on which rank goes first: an action that can run stays runnable until
/// it is done.
#pragma once

#include "engine/schedule/validate.h"

namespace sherd::schedule {

/// Names every waiting rank and what it waits for. The violation's rank and position are those of
/// the lowest waiting rank.
std::optional<Violation> deadlock(const Schedule& schedule, const Channels& channels);

}  // namespace sherd::schedule
