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
/// Before a run begins there is nothing to save, and what it does then, such as encoding texts, may take long:
///
///   end_at_stop_signals   SIGTERM, SIGUSR1 and SIGHUP end the process at once: exit code 75, one line
///   note_stop_signals     they are noted for somebody who looks (take_noted_stop); install_stop_handlers takes a
///                         noted one as asked for
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

/// Who says it where each of several processes gets the signal. One that doesn't come from `parent`, mpirun say, is for
/// this process alone.
struct StopSpeaker {
  bool speaks_for_all = true;
  int parent = 0;  ///< 0: nobody's signals are for all
  /// The parent's SIGTERM is no request: mpirun sends it where another process has failed.
  bool silent_at_sigterm = false;
};
void end_at_stop_signals(const StopSpeaker& speaker = {});
void note_stop_signals();
/// The signal that was noted, once; 0: none.
int take_noted_stop();
/// Whether install_stop_handlers has been called.
bool stop_handlers_installed();

/// "SIGTERM before the run began; start it again."
std::string early_stop_text(int signal);

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
