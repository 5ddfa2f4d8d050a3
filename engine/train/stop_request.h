/// Whether a training should end at its next safe point, and how. The owner of the training decides
/// where requests come from: the program uses signals (engine/launch/stop_signals.h).
#pragma once

#include <functional>

namespace sherd::engine {

enum class StopRequest : int {
  kNone = 0,
  kInterrupt = 1,  ///< a person asked for the end
  kTimeLimit = 2,  ///< as kRequeue, since the run has lasted as long as it may
  kRequeue = 3     ///< the machine is withdrawn: save, to be started again
};

/// Returns the request so far. Empty: there are no requests. Each rank calls it on its own thread
/// and shares the result with the others.
using AskedToStop = std::function<StopRequest()>;

/// Returns whether a checkpoint has been asked for since the last call, while training continues.
/// Empty: there are no such requests. Called as AskedToStop.
using AskedToSave = std::function<bool()>;

/// What one rank is asked for before a step.
struct StepRequests {
  StopRequest stop = StopRequest::kNone;
  bool save = false;
};

}  // namespace sherd::engine
