#include "tests/support/runs/program.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "tests/support/values/temp_folder.h"

extern char** environ;

namespace sherd::test {
namespace {

std::string read_lines(int pipe, pid_t child,
                       const std::function<void(pid_t, const std::string&)>& on_line) {
  std::string text;
  FILE* file = ::fdopen(pipe, "r");
  char* line = nullptr;
  std::size_t capacity = 0;
  for (ssize_t size; (size = ::getline(&line, &capacity, file)) > 0;) {
    const std::string read(line, static_cast<std::size_t>(size));
    text += read;
    if (on_line) on_line(child, read.substr(0, read.find('\n')));
  }
  std::free(line);
  std::fclose(file);
  return text;
}

}  // namespace

ProgramOutcome run_program(const std::string& path, const std::vector<std::string>& arguments,
                           const std::function<void(pid_t, const std::string&)>& on_line) {
  TempFolder folder;
  int pipe[2];
  SHERD_CHECK(::pipe2(pipe, O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], 1);
  posix_spawn_file_actions_addopen(&actions, 2, folder.file("err").c_str(), O_WRONLY | O_CREAT,
                                   0600);
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t child = 0;
  const int failed = ::posix_spawn(&child, path.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(pipe[1]);
  SHERD_CHECK(failed == 0, "{} can't be run", path);

  ProgramOutcome outcome;
  outcome.out = read_lines(pipe[0], child, on_line);
  int status = 0;
  SHERD_CHECK(::waitpid(child, &status, 0) == child);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  outcome.err = folder.read("err");
  return outcome;
}

}  // namespace sherd::test
