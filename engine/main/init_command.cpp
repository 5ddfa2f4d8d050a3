#include "engine/main/commands.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"
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

// `sherd init`: writes a first recipe.
class InitCommand {
 public:
  explicit InitCommand(CLI::App& command);
  /// Errors   UsageError if the recipe's file exists or can't be written; those of starter_recipe.
  void run() const;

 private:
  std::string texts_, recipe_ = "recipe.yaml", format_ = "bytes";
};

InitCommand::InitCommand(CLI::App& command) {
  command.add_option("texts", texts_, "Folder of texts, a file or a glob")
      ->type_name("TEXTS")
      ->required();
  command.add_option("--to", recipe_, "Recipe to write (default recipe.yaml); must not exist")
      ->type_name("FILE");
  command
      .add_option("--format", format_, "bytes: a token is a byte; chars: a token is a character")
      ->check(CLI::IsMember({"bytes", "chars"}));
}

void InitCommand::run() const {
  const auto format = format_ == "chars" ? engine::DataFormat::kChars : engine::DataFormat::kBytes;
  const std::string recipe = engine::starter_recipe({.data_path = texts_, .format = format});
  write_new(recipe_, recipe);
  fmt::print("{}: written. Read it, then: sherd train {}\n", recipe_, recipe_);
}

}  // namespace

Command init_command(CLI::App& program) {
  return make_command<InitCommand>(program, "init", "Write a first recipe for a folder of texts");
}

}  // namespace sherd::main
