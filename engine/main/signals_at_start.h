/// What the caller of this program decided about signals.
///
/// Libraries may install handlers when they are loaded: libpsm2, which Open MPI 5 of Debian 13
/// needs, does so for crash reports. They would hide that SIGHUP is ignored, as nohup asks, and end
/// the program in their way.
#pragma once

namespace sherd::main {

/// Gives signals that a terminal or a scheduler sends the action that they had before libraries were
/// loaded: the default, or none. Call first.
void restore_signals_at_start();

}  // namespace sherd::main
