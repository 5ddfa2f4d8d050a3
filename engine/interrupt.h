/// Ctrl-C asks the run to stop at its next safe point; a second Ctrl-C kills it at once.
#pragma once

namespace sherd::engine {

/// From now on SIGINT sets the flag below instead of killing the process, once: the default action
/// is restored as the signal arrives. Calling again clears the flag and starts over.
void install_interrupt_handler();

/// Whether SIGINT has arrived since. Any thread may ask; costs one relaxed load.
bool interrupted();

}  // namespace sherd::engine
