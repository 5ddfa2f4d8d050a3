/// Holds one thread of a process, as a debugger does, while its other threads continue.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <future>
#include <thread>

namespace sherd::testing {

class Hold {
 public:
  /// Waits until the thread has been ended.
  ~Hold() {
    if (holder_.joinable()) holder_.join();
  }
  /// Returns when it is held. A process's first thread, which has its number, is its first rank's.
  void thread_of(pid_t task) {
    std::promise<void> held;
    holder_ = std::thread([task, &held] {
      int status = 0;
      const bool stands = ::ptrace(PTRACE_SEIZE, task, nullptr, nullptr) == 0 &&
                          ::ptrace(PTRACE_INTERRUPT, task, nullptr, nullptr) == 0 &&
                          ::waitpid(task, &status, __WALL) == task;
      EXPECT_TRUE(stands && WIFSTOPPED(status)) << "thread " << task << " can't be held";
      held.set_value();
      siginfo_t end;  // its parent learns of it after us
      ::waitid(P_PID, static_cast<id_t>(task), &end, WEXITED | WNOWAIT | __WALL);
    });
    held.get_future().wait();
  }

 private:
  std::thread holder_;
};

}  // namespace sherd::testing
