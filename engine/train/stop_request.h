/// Whether a training should end at its next safe point, and how. The owner of the training decides
/// where requests come from: the program uses signals (engine/launch/stop_signals.h).
#pragma once

#include <functional>

namespace sherd::engine {

enum class StopRequest : int {
  kNone = 0,
  kInterrupt = 1,  ///< a person asked for the end
  kRequeue = 2     ///< the machine is withdrawn: save, to be started again
};

/// Returns the request so far. Empty: there are no requests. Each rank calls it on its own thread
/// and shares the result with the others.
using AskedToStop = std::function<StopRequest()>;

}  // namespace sherd::engine
