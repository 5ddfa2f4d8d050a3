/// Signals that ask a run to end at its next safe point, after the step that is under way.
///
///   SIGINT (Ctrl-C)   ends the run; a second one kills the process at once
///   SIGTERM, SIGUSR1  a scheduler takes the machine away: save, then exit with code 75, "start me
///                     again". Further ones change nothing. `deadline` after the first, whatever is
///                     still going on ends (exit code 75, one line): that is a crash like any
///                     other, and costs the steps since the last save
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace sherd::engine {

enum class StopRequest : int { kNone = 0, kInterrupt = 1, kRequeue = 2 };

/// From now on SIGINT asks instead of killing. With a deadline, of at least a second, so do SIGTERM
/// and SIGUSR1; without one they keep their default action, which is to kill. Calling again forgets
/// what was asked for and starts over.
void install_stop_handlers(std::optional<std::chrono::seconds> requeue_deadline = {});

/// What has been asked for since. Any thread may ask; costs one relaxed load.
StopRequest stop_request();

/// The run has ended as it was asked to: Interrupted or Requeue, starting with who asked.
[[noreturn]] void throw_stopped(StopRequest request, const std::string& where);

}  // namespace sherd::engine
