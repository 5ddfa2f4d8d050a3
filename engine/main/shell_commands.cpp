#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "engine/launch/system_info.h"
#include "engine/main/commands.h"
#include "engine/main/shell/completion.h"
#include "engine/main/shell/man_page.h"

namespace sherd::main {
namespace {

// `sherd completion`: a shell's completion script.
class CompletionCommand {
 public:
  explicit CompletionCommand(CLI::App& command) : program_(*command.get_parent()) {
    command.add_option("shell", shell_, "The shell to print it for")
        ->check(CLI::IsMember({"bash", "zsh", "fish"}))
        ->required();
  }

  void run() const {
    const auto write = shell_ == "bash"  ? bash_completion
                       : shell_ == "zsh" ? zsh_completion
                                         : fish_completion;
    fmt::print("{}", write(command_table(program_), key_table()));
  }

 private:
  const CLI::App& program_;
  std::string shell_;
};

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw DataError("{}: can't be written.", path.string());
}

// `sherd man`: a man page, or all of them as files.
class ManCommand {
 public:
  explicit ManCommand(CLI::App& command) : program_(*command.get_parent()) {
    CLI::Option* name = command.add_option("command", name_, "The command (default: sherd itself)")
                            ->type_name("NAME");
    command.add_option("--to", folder_, "Write all pages into this folder, which must exist")
        ->type_name("FOLDER")
        ->excludes(name);
  }

  void run() const {
    const std::vector<CommandRow> commands = command_table(program_);
    const std::string_view version = engine::version();
    if (!folder_.empty()) {
      const std::filesystem::path folder = folder_;
      write_file(folder / "sherd.1", man_page(commands, version));
      for (const CommandRow& command : commands) {
        write_file(folder / ("sherd-" + command.name + ".1"), man_page(command, version));
      }
    } else if (name_.empty()) {
      fmt::print("{}", man_page(commands, version));
    } else {
      const auto found = std::ranges::find(commands, name_, &CommandRow::name);
      if (found == commands.end()) {
        throw UsageError("sherd man: there is no command \"{}\"; sherd --help lists them.", name_);
      }
      fmt::print("{}", man_page(*found, version));
    }
  }

 private:
  const CLI::App& program_;
  std::string name_, folder_;
};

}  // namespace

Command completion_command(CLI::App& program) {
  return make_command<CompletionCommand>(program, "completion",
                                         "Print the completion script of a shell");
}

Command man_command(CLI::App& program) {
  return make_command<ManCommand>(program, "man", "Print a man page");
}

}  // namespace sherd::main
