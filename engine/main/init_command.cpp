#include "engine/main/commands.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "engine/main/own_program.h"
#include "engine/run/starter_recipe.h"

namespace sherd::main {
namespace {

// Never overwrites an existing file, and never follows a link.
void write_new(const std::string& path, const std::string& text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (file < 0 && errno == EEXIST) {
    throw UsageError("{}: exists. Name another file with --to.", path);
  }
  if (file < 0) throw UsageError("{}: can't be written: {}.", path, std::strerror(errno));
  const ssize_t written = ::write(file, text.data(), text.size());
  const int problem = errno;
  ::close(file);
  if (written == static_cast<ssize_t>(text.size())) return;
  ::unlink(path.c_str());
  throw UsageError("{}: can't be written: {}.", path,
                   written < 0 ? std::strerror(problem) : "no room");
}

// What packages carry for the quickstart: in share/ next to the bin/ of an installed program, or
// next to the program in a build's folder.
std::string quickstart_folder() {
  namespace fs = std::filesystem;
  const fs::path own = fs::path(own_path()).parent_path();
  for (const fs::path& root : {own.parent_path(), own}) {
    const fs::path folder = root / "share/sherd/quickstart";
    if (fs::is_directory(folder)) return folder;
  }
  throw UsageError(
      "--quickstart: {}/share/sherd/quickstart isn't there. Install sherd from a package.",
      own.parent_path().string());
}

// `sherd init`: writes a first recipe.
class InitCommand {
 public:
  explicit InitCommand(CLI::App& command);
  /// Errors   UsageError if the recipe's file exists or can't be written; those of starter_recipe
  ///          and packaged_quickstart.
  void run() const;

 private:
  std::string recipe() const;

  std::string texts_, recipe_ = "recipe.yaml", format_ = "bytes";
  bool quickstart_ = false;
  CLI::Option* format_option_ = nullptr;
};

InitCommand::InitCommand(CLI::App& command) {
  command.add_option("texts", texts_, "Folder of texts, a file or a glob")->type_name("TEXTS");
  command.add_flag("--quickstart", quickstart_,
                   "Write the quickstart's recipe, on the text that comes with the program");
  command.add_option("--to", recipe_, "Recipe to write (default recipe.yaml); must not exist")
      ->type_name("FILE");
  format_option_ = command
                       .add_option("--format", format_,
                                   "bytes: a token is a byte; chars: a token is a character")
                       ->check(CLI::IsMember({"bytes", "chars"}));
}

std::string InitCommand::recipe() const {
  if (quickstart_ && !texts_.empty()) {
    throw UsageError("--quickstart has a text of its own; omit {}.", texts_);
  }
  if (quickstart_ && format_option_->count() > 0) {
    throw UsageError("--quickstart has a format of its own; omit --format.");
  }
  if (quickstart_) return engine::packaged_quickstart(quickstart_folder());
  if (texts_.empty()) throw UsageError("init needs TEXTS: a folder of texts, a file or a glob.");
  const auto format = format_ == "chars" ? engine::DataFormat::kChars : engine::DataFormat::kBytes;
  return engine::starter_recipe({.data_path = texts_, .format = format});
}

void InitCommand::run() const {
  write_new(recipe_, recipe());
  fmt::print("{}: written. Read it, then: sherd train {}\n", recipe_, recipe_);
}

}  // namespace

Command init_command(CLI::App& program) {
  return make_command<InitCommand>(program, "init", "Write a first recipe for a folder of texts");
}

}  // namespace sherd::main
