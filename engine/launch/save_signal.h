/// SIGUSR2: save a checkpoint after the current step, while training continues.
///
/// mpirun passes the signal on to every process. Process 0 counts it; the others ignore it if their
/// parent sent it, so that one signal is one checkpoint. A signal that is sent to one process counts
/// there.
#pragma once

namespace sherd::engine {

/// From now on, SIGUSR2 is a request, and earlier ones are forgotten. Any process may call it
/// again.
void install_save_signal();
/// The requests that came before a run are forgotten; until install_save_signal, they do nothing.
void ignore_save_signal();
/// Whether there is a request since the last call. Any thread may call it; costs one relaxed load.
bool take_save_signal();

}  // namespace sherd::engine
