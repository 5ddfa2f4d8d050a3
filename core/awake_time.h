/// Waiting that doesn't count the time in which this process was stopped: by Ctrl-Z, by a debugger, or
/// with its whole machine. Steady clocks go on meanwhile. Without this, each process of a run that
/// was stopped and continues would declare the others dead.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace sherd {

/// For a thread that looks at a deadline again and again.
class AwakeTime {
 public:
  using Clock = std::chrono::steady_clock;

  /// `often`: a process that runs looks at least so often, even on a busy machine.
  explicit AwakeTime(Clock::duration often) : often_(often) {}

  /// How long the process was stopped since the last look; 0: it wasn't.
  Clock::duration stopped() {
    const Clock::time_point now = Clock::now();
    const Clock::duration between = now - std::exchange(looked_, now);
    return between > often_ ? between : Clock::duration::zero();
  }

 private:
  const Clock::duration often_;
  Clock::time_point looked_ = Clock::now();
};

/// As changed.wait_for(lock, timeout, done).
template <class Done>
bool wait_awake(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                std::chrono::milliseconds timeout, const Done& done) {
  using Clock = AwakeTime::Clock;
  constexpr std::chrono::milliseconds kBetween{200}, kOften{1000};
  AwakeTime awake(kOften);
  auto deadline = Clock::now() + timeout;
  while (true) {
    if (changed.wait_until(lock, std::min(deadline, Clock::now() + kBetween), done)) return true;
    deadline += awake.stopped();
    if (Clock::now() >= deadline) return false;
  }
}

}  // namespace sherd
