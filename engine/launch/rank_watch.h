/// Watches the ranks of a process, from its own thread.
///
///   stuck    a rank has failed, which ends the world, but others don't end: they loop, or wait
///            forever. No other thread can end them, so the listener should end the process.
///   stop     a signal has asked the run to end, and after some time it hasn't: reports each rank's
///            last collectives, before the process is killed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "sharding/comm/flight_recorder.h"

namespace sherd::engine {

class RankWatch {
 public:
  /// From a failure to `on_stuck`, and from a signal to `on_calls`. mpirun kills a second after its
  /// signal.
  static constexpr std::chrono::milliseconds kForOthers{5000}, kForAStop{500};

  struct Options {
    /// The ranks that haven't ended, and the failure that should have ended them.
    std::function<void(const std::vector<int>& ranks, std::exception_ptr failure)> on_stuck;
    std::function<bool()> stop_asked;
    std::function<void(int rank, const std::string& calls)> on_calls;
    std::chrono::milliseconds for_others = kForOthers;
  };
  /// Without listeners there is no thread.
  explicit RankWatch(Options options);
  ~RankWatch();

  /// The recorder must live until `ended`.
  void began(int rank, const sharding::FlightRecorder& recorder);
  void ended(int rank);
  /// Only the first failure counts. A run that ends on request has not failed.
  void failed(const std::exception_ptr& error);

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  void tell_calls(std::unique_lock<std::mutex>& lock);
  void tell_stuck(std::unique_lock<std::mutex>& lock);

  const Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, const sharding::FlightRecorder*> ranks_;  ///< that run
  std::exception_ptr failure_;
  std::optional<Clock::time_point> failed_, stop_seen_;
  bool ends_as_asked_ = false;
  bool over_ = false;
  std::thread thread_;  // last: it starts when everything else is there
};

}  // namespace sherd::engine
