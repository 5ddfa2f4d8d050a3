#include <fmt/format.h>

#include "engine/data/arrow/arrow_rows.h"
#include "engine/launch/system_info.h"
#include "engine/main/commands.h"

namespace sherd::main {
namespace {

// `sherd info`: has no options.
struct InfoCommand {
  explicit InfoCommand(CLI::App&) {}
  void run() const {
    fmt::print("{}{:<10} {}\n", engine::system_info(), "tables", data::arrow_text());
  }
};

}  // namespace

Command info_command(CLI::App& program) {
  return make_command<InfoCommand>(program, "info",
                                   "Print version, libraries and what this machine offers");
}

}  // namespace sherd::main
