/// Man pages in roff: sherd(1), and sherd-COMMAND(1) for each command.
#pragma once

#include <string>
#include <string_view>

#include "engine/main/shell/command_table.h"

namespace sherd::main {

/// `version` is printed at the bottom of the page. Pages have no date, so the same program always
/// writes the same bytes.
std::string man_page(const std::vector<CommandRow>& commands, std::string_view version);
std::string man_page(const CommandRow& command, std::string_view version);

}  // namespace sherd::main
