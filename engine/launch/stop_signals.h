/// Signals that ask a run to end at its next safe point, after the step that is under way. The program's: a trainer
/// (engine/trainer) has no signals, it asks whom it was told to ask.
///
///   SIGINT (Ctrl-C)   ends the run; a second one kills the process at once
///   SIGTERM, SIGUSR1  a scheduler takes the machine away, or the terminal is gone: save, then exit
///   SIGHUP            with code 75, "start me again". Further ones change nothing. `deadline` after
///                     the first, whatever is still going on ends (exit code 75, one line): that is
///                     a crash like any other, and costs the steps since the last save. A SIGHUP
///                     that the process was started to ignore (nohup) stays ignored
///
/// And what a write may meet that is no reason to end at all: `outlive_lost_output`.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "engine/train/stop_request.h"

namespace sherd::engine {

/// From now on SIGINT asks instead of killing. With a deadline, of at least a second, so do SIGTERM,
/// SIGUSR1 and SIGHUP; without one they keep their default action, which is to kill. Calling again forgets
/// what was asked for and starts over.
void install_stop_handlers(std::optional<std::chrono::seconds> requeue_deadline = {});

/// What has been asked for since. Any thread may ask; costs one relaxed load.
StopRequest stop_request();

/// From now on a write into a pipe that nobody reads, or beyond the limit on file sizes, is an error
/// of that write and not the end of the process (SIGPIPE, SIGXFSZ).
void outlive_lost_output();

/// Who asked: "Ctrl-C", "SIGTERM", "SIGUSR1", "SIGHUP", or "a signal" that another process got.
std::string asked_by(StopRequest request);

/// The run has ended as it was asked to: Interrupted or Requeue, starting with who asked.
[[noreturn]] void throw_stopped(StopRequest request, const std::string& where);
/// The same where a signal has asked; else nothing.
void end_if_asked(const std::string& where);

}  // namespace sherd::engine
