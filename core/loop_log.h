/// When each task of a thread team's loops ran, and on which thread: for tools that look for waits
/// (./dev bench threads). ThreadTeam::log_to turns it on.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sherd {

class LoopLog {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Task {
    Time taken;  ///< a thread has it
    Time begin;  ///< the tasks that it needs are done
    Time end;
    std::int64_t needs = 0;  ///< all tasks below this number (ThreadTeam::parallel_for_after)
    int thread = 0;
  };
  struct Loop {
    std::string name;
    Time begin, end;
    std::vector<Task> tasks;
  };

  /// Of the loops that follow.
  void name(std::string_view name) { name_ = name; }
  void clear() { loops_.clear(); }
  const std::vector<Loop>& loops() const { return loops_; }

 private:
  friend class ThreadTeam;
  std::string name_;
  std::vector<Loop> loops_;  // the last one may be running
};

}  // namespace sherd
