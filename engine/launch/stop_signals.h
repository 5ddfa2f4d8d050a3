/// Signals that ask a run to end at its next safe point, after the current step. Only the program
/// handles signals; a trainer (engine/trainer) calls a function that it is given.
///
///   SIGINT (Ctrl-C)   ends the run; a second one kills the process at once
///   SIGTERM, SIGUSR1  a scheduler takes the machine away, or the terminal is gone: save, then exit
///   SIGHUP            with code 75, "start me again". Further ones change nothing. `deadline`
///                     after the first, the process ends in any case (exit code 75, one line). As
///                     after a crash, the steps since the last save are lost. A SIGHUP that the
///                     process was started to ignore (nohup) stays ignored
///
/// Before a run begins there is nothing to save, but its preparation, such as encoding texts, may
/// take long:
///
///   end_at_stop_signals   SIGTERM, SIGUSR1 and SIGHUP end the process at once (code 75, one line)
///   note_stop_signals     they are recorded for take_noted_stop; install_stop_handlers treats a
///                         recorded signal as a request
///
/// Signals caused by a write shouldn't end a run at all: `outlive_lost_output`.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "engine/train/stop_request.h"

namespace sherd::engine {

/// From now on, SIGINT is a request instead of killing the process. With a deadline of at least a
/// second, so are SIGTERM, SIGUSR1 and SIGHUP; without one, they keep their default action, which
/// is to kill. Calling again forgets earlier requests.
void install_stop_handlers(std::optional<std::chrono::seconds> requeue_deadline = {});

/// How several processes treat a signal that each of them gets. A signal that doesn't come from
/// `parent`, such as mpirun, is for this process alone.
struct StopSpeaker {
  bool speaks_for_all = true;
  int parent = 0;  ///< 0: no signals are for all processes
  /// The parent's SIGTERM isn't a request: mpirun sends it if another process has failed.
  bool silent_at_sigterm = false;
};
void end_at_stop_signals(const StopSpeaker& speaker = {});
void note_stop_signals();
/// Returns the recorded signal, once; 0: none.
int take_noted_stop();
/// Whether install_stop_handlers has been called.
bool stop_handlers_installed();

/// "SIGTERM before the run began; start it again."
std::string early_stop_text(int signal);

/// The run has saved what the signal asked it to save: what the deadline's line then says.
void note_saved();

/// Turns the deadline's alarm off, once the run has saved; returns how long it still had, 0: there was
/// none.
std::chrono::seconds cancel_stop_deadline();
/// Ends the process again when this time has passed.
void resume_stop_deadline(std::chrono::seconds left);

/// The request since then. Any thread may call it; costs one relaxed load.
StopRequest stop_request();

/// From now on, a write to a pipe without a reader, or beyond the file size limit, fails instead of
/// ending the process (SIGPIPE, SIGXFSZ).
void outlive_lost_output();

/// The source of the request: "Ctrl-C", "SIGTERM", "SIGUSR1", "SIGHUP", "a signal" that another
/// process got, or the recipe's limit of time.
std::string asked_by(StopRequest request);

/// Throws Interrupted or Requeue for a run that has ended on request; the text starts with the
/// source.
[[noreturn]] void throw_stopped(StopRequest request, const std::string& where);
/// The same if a signal has asked the run to end; else does nothing.
void end_if_asked(const std::string& where);

}  // namespace sherd::engine
