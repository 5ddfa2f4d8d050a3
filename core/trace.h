/// What every stream of a rank did and when, written as a Chrome trace (chrome://tracing,
/// Perfetto).
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace sherd {

using Clock = std::chrono::steady_clock;

/// Spans collected by one process; any thread may add one. Off until `start`.
class Trace {
 public:
  struct Span {
    int rank;
    std::string stream;
    std::string label;
    Clock::time_point begin, end;
  };

  void start() { active_ = true; }
  void stop() { active_ = false; }
  bool active() const { return active_; }
  void add(int rank, std::string_view stream, std::string_view label, Clock::time_point begin,
           Clock::time_point end);
  std::vector<Span> spans() const;
  /// The JSON array format of the Trace Event specification: one process per rank, one thread per
  /// stream, complete ("X") events in microseconds.
  std::string to_chrome_json() const;

 private:
  std::atomic<bool> active_{false};
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
};

}  // namespace sherd
