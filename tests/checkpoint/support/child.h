/// A child process whose output is read line by line, and which is killed when the test says so.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "core/error.h"

namespace sherd::test {

class Child {
 public:
  enum class Trace { kNo, kYes };

  explicit Child(const std::vector<std::string>& words, Trace trace = Trace::kNo) {
    int ends[2];
    SHERD_CHECK(::pipe(ends) == 0);
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::close(ends[0]);
      ::close(ends[1]);
      if (trace == Trace::kYes && ::ptrace(PTRACE_TRACEME, 0, 0, 0) != 0) ::_exit(126);
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
    ::close(ends[1]);
    output_ = ends[0];
  }
  ~Child() {
    if (!ended_) {
      ::kill(pid_, SIGKILL);
      wait();
    }
    ::close(output_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }

  /// Waits for output; false: there is no more.
  bool read_some() {
    char bytes[4096];
    const ssize_t got = ::read(output_, bytes, sizeof bytes);
    if (got <= 0) return false;
    text_.append(bytes, static_cast<std::size_t>(got));
    return true;
  }

  /// Reads until that moment, or until the child ends.
  void read_until(std::chrono::steady_clock::time_point moment) {
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(
          moment - std::chrono::steady_clock::now());
      if (left.count() <= 0) return;
      pollfd wanted{output_, POLLIN, 0};
      const timespec timeout{left.count() / 1'000'000'000, left.count() % 1'000'000'000};
      if (::ppoll(&wanted, 1, &timeout, nullptr) > 0 && !read_some()) return;
    }
  }
  void kill() { ::kill(pid_, SIGKILL); }
  /// Reads to the end of the output; the status of waitpid.
  int wait() {
    while (read_some()) {
    }
    if (!ended_) ::waitpid(pid_, &status_, 0);
    ended_ = true;
    return status_;
  }
  /// The tracer has seen it end.
  void has_ended(int status) {
    status_ = status;
    ended_ = true;
  }
  const std::string& output() const { return text_; }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  int status_ = 0;
  bool ended_ = false;
  std::string text_;
};

}  // namespace sherd::test
