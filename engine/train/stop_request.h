/// Whether somebody wants a training to end at its next safe point, and how. Whoever runs it decides where that comes
/// from: the program asks its signals (engine/launch/stop_signals.h).
#pragma once

#include <functional>

namespace sherd::engine {

enum class StopRequest : int {
  kNone = 0,
  kInterrupt = 1,  ///< a person wants it to end
  kRequeue = 2     ///< the machine is taken away: save, and be started again
};

/// What has been asked for so far. Empty: nobody asks. Ranks ask on their own threads, and tell one another.
using AskedToStop = std::function<StopRequest()>;

}  // namespace sherd::engine
