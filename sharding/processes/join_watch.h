/// While processes join, MPI waits without a deadline for a process that doesn't come, and no
/// connection of our own can name it. This watch can, on its own thread: it reads the system's
/// information about this machine's processes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace sherd::sharding {

class JoinWatch {
 public:
  /// Calls `late` on its own thread, unless this object is destroyed before. Without `late` there
  /// is no thread.
  JoinWatch(std::chrono::milliseconds timeout, std::function<void()> late);
  ~JoinWatch();
  JoinWatch(const JoinWatch&) = delete;
  JoinWatch& operator=(const JoinWatch&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

/// A process of a job on this machine.
struct Neighbour {
  int process = 0;  ///< its number in the world
  int id = 0;       ///< the system's process id
  bool stopped = false;
  bool operator==(const Neighbour&) const = default;
};
/// Processes of mpirun's job `job` (PMIX_NAMESPACE, read from their environment), ascending. Only
/// this user's processes can be seen.
std::vector<Neighbour> neighbours(const std::string& job);

/// What process `own` reports after waiting for `seconds`; "" if another process here reports it.
std::string late_text(int own, const std::string& host, double seconds,
                      const std::vector<Neighbour>& neighbours);

}  // namespace sherd::sharding
