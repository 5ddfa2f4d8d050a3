/// `sherd serve`. In a header of its own, since only one file needs it.
#pragma once

#include "engine/main/commands.h"

namespace sherd::main {

Command serve_command(CLI::App& program);

}  // namespace sherd::main
