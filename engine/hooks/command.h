/// Runs one shell command: with input, a time limit, and its output passed on as it comes.
///
/// The command has a process group of its own, so the terminal's Ctrl-C doesn't reach it. It
/// inherits no open files and no ignored signals. Its standard output and error are pipes: a
/// process that it leaves in the background should redirect both.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::engine {

struct Command {
  std::string text;                      ///< for /bin/sh -c
  std::vector<std::string> environment;  ///< NAME=VALUE; all that it gets
  std::string input{};                   ///< on standard input
  std::chrono::milliseconds timeout{};
  /// Called with pieces of its output, on the caller's thread. May be empty.
  std::function<void(std::string_view)> on_output{};
  /// Asked every few milliseconds: true kills the command. May be empty.
  std::function<bool()> gives_up{};
};

struct CommandEnd {
  enum class Kind { kExited, kSignalled, kTimedOut, kGivenUp, kNotStarted };
  Kind kind = Kind::kExited;
  int code = 0;                   ///< exit code, signal, or errno
  std::string last_error_line{};  ///< of its standard error: without control characters, shortened

  bool succeeded() const { return kind == Kind::kExited && code == 0; }
  /// "ended with code 3", "was killed by SIGSEGV", "was killed after 5 s (hooks.timeout)", ...
  std::string text(std::chrono::milliseconds timeout) const;
};

/// Returns when the command has ended. After the timeout, its whole process group is killed.
CommandEnd run_command(const Command& command);

}  // namespace sherd::engine
