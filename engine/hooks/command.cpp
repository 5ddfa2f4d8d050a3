#include "engine/hooks/command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

namespace sherd::engine {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kBetweenLooks = 20;  // milliseconds
constexpr std::size_t kLongestLine = 300;

class OwnedFile {
 public:
  OwnedFile() = default;
  explicit OwnedFile(int fd) : fd_(fd) {}
  OwnedFile(const OwnedFile&) = delete;
  OwnedFile& operator=(const OwnedFile&) = delete;
  ~OwnedFile() { reset(); }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

// A file in memory: the command may read all of it, a part, or nothing, and the caller never waits.
bool put_in_memory(OwnedFile& file, const std::string& text) {
  file.reset(::memfd_create("hook", MFD_CLOEXEC));
  return file.get() >= 0 &&
         ::pwrite(file.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
}

struct Pipe {
  OwnedFile read, write;
  bool open() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return false;
    read.reset(ends[0]);
    write.reset(ends[1]);
    return ::fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0;
  }
};

// Remembers the last line that isn't blank, without holding more than its beginning.
class LastLine {
 public:
  void add(std::string_view text) {
    for (const char c : text) {
      if (c == '\n' || c == '\r') {
        keep();
        now_.clear();
      } else if (now_.size() < kLongestLine) {
        now_ += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
      }
    }
  }
  std::string take() {
    keep();
    return std::move(last_);
  }

 private:
  void keep() {
    if (now_.find_first_not_of(' ') != std::string::npos) last_ = now_;
  }
  std::string now_, last_;
};

// Starts the command; returns 0 or errno.
int start(const Command& command, int input, int output, int error, pid_t& process) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, input, 0);
  posix_spawn_file_actions_adddup2(&files, output, 1);
  posix_spawn_file_actions_adddup2(&files, error, 2);
  posix_spawn_file_actions_addclosefrom_np(&files, 3);
  posix_spawnattr_t how;
  posix_spawnattr_init(&how);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&how, &none);
  posix_spawnattr_setsigdefault(&how, &all);
  posix_spawnattr_setpgroup(&how, 0);
  posix_spawnattr_setflags(&how,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<char*> environment;
  for (const std::string& variable : command.environment) {
    environment.push_back(const_cast<char*>(variable.c_str()));
  }
  environment.push_back(nullptr);
  const std::array<const char*, 4> words = {"/bin/sh", "-c", command.text.c_str(), nullptr};
  const int problem = ::posix_spawn(&process, words[0], &files, &how,
                                    const_cast<char* const*>(words.data()), environment.data());
  posix_spawnattr_destroy(&how);
  posix_spawn_file_actions_destroy(&files);
  return problem;
}

class RunningCommand {
 public:
  RunningCommand(const Command& command, pid_t process, int output, int error)
      : command_(command), process_(process), files_{output, error} {}

  CommandEnd wait() {
    const auto begin = Clock::now();
    std::optional<CommandEnd::Kind> killed;
    while (true) {
      look(kBetweenLooks);
      if (ended()) break;
      if (killed) continue;
      if (Clock::now() - begin >= command_.timeout) killed = CommandEnd::Kind::kTimedOut;
      if (!killed && command_.gives_up && command_.gives_up()) killed = CommandEnd::Kind::kGivenUp;
      if (killed) ::kill(-process_, SIGKILL);
    }
    look(0);
    CommandEnd end{.kind = CommandEnd::Kind::kExited, .code = WEXITSTATUS(status_)};
    if (WIFSIGNALED(status_)) end = {CommandEnd::Kind::kSignalled, WTERMSIG(status_)};
    if (killed) end.kind = *killed;
    end.last_error_line = last_line_.take();
    return end;
  }

 private:
  // Where SIGCHLD is ignored, as a library's caller may do, the system takes the status away: then
  // nobody knows that the command has succeeded.
  bool ended() {
    constexpr int kUnknown = 255 << 8;
    const pid_t found = ::waitpid(process_, &status_, WNOHANG);
    if (found < 0 && errno != EINTR) status_ = kUnknown;
    return found == process_ || (found < 0 && errno == ECHILD);
  }

  void look(int milliseconds) {
    std::array<pollfd, 2> polled{};
    for (std::size_t i = 0; i < 2; ++i) polled[i] = {files_[i], POLLIN, 0};
    ::poll(polled.data(), polled.size(), milliseconds);
    for (std::size_t i = 0; i < 2; ++i) read(i);
  }

  void read(std::size_t file) {
    std::array<char, 4096> bytes{};
    constexpr int kAtOnce = 64;  // a command that never stops printing has a time limit, too
    for (int i = 0; i < kAtOnce && files_[file] >= 0; ++i) {
      const ssize_t got = ::read(files_[file], bytes.data(), bytes.size());
      if (got == 0) files_[file] = -1;  // poll ignores it; its owner closes it
      if (got <= 0) return;
      const std::string_view text(bytes.data(), static_cast<std::size_t>(got));
      if (command_.on_output) command_.on_output(text);
      if (file == 1) last_line_.add(text);
    }
  }

  const Command& command_;
  const pid_t process_;
  std::array<int, 2> files_;
  int status_ = 0;
  LastLine last_line_;
};

}  // namespace

std::string CommandEnd::text(std::chrono::milliseconds timeout) const {
  std::string text;
  switch (kind) {
    case Kind::kExited:
      text = fmt::format("ended with code {}", code);
      break;
    case Kind::kSignalled: {
      const char* name = ::sigabbrev_np(code);
      text = name ? fmt::format("was killed by SIG{}", name)
                  : fmt::format("was killed by signal {}", code);
      break;
    }
    case Kind::kTimedOut:
      text = fmt::format("was killed after {:g} s (hooks.timeout)",
                         std::chrono::duration<double>(timeout).count());
      break;
    case Kind::kGivenUp:
      text = "was killed, since the run has to end";
      break;
    case Kind::kNotStarted:
      text = fmt::format("couldn't be started ({})", std::strerror(code));
      break;
  }
  return last_error_line.empty() ? text : text + ": " + last_error_line;
}

CommandEnd run_command(const Command& command) {
  OwnedFile input;
  Pipe output, error;
  pid_t process = 0;
  if (!put_in_memory(input, command.input) || !output.open() || !error.open()) {
    return {CommandEnd::Kind::kNotStarted, errno};
  }
  const int problem = start(command, input.get(), output.write.get(), error.write.get(), process);
  if (problem != 0) return {CommandEnd::Kind::kNotStarted, problem};
  output.write.reset();
  error.write.reset();
  return RunningCommand(command, process, output.read.get(), error.read.get()).wait();
}

}  // namespace sherd::engine
