/// The latest calls of a rank's communicators: they show where a world hangs.
///
/// Each call is recorded when it is enqueued, when its stream begins it and when it is done. Ranks
/// that wait for one another have the same calls in the same order. They diverge at the first call
/// whose state differs between ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sharding/comm/communicator.h"

namespace sherd::sharding {

class FlightRecorder {
 public:
  static constexpr std::size_t kCalls = 4096;  ///< that are kept

  enum class State : std::uint8_t { kEnqueued, kRunning, kDone };
  struct Call {
    std::int64_t number = 0;  ///< counts all calls of this rank, from 1
    State state = State::kEnqueued;
    std::string group, operation, label;
    std::int64_t bytes = 0;
  };

  FlightRecorder() { ring_.reserve(kCalls); }

  /// Returns the call's number.
  std::int64_t enqueued(const std::string& group, const char* operation, const std::string& label,
                        std::int64_t bytes);
  void enter(std::int64_t number, State state);

  /// The kept calls, oldest first.
  std::vector<Call> calls() const;
  /// One line per call: number, state, operation, label, bytes, group.
  std::string text() const;

 private:
  mutable std::mutex mutex_;
  std::int64_t num_calls_ = 0;
  std::vector<Call> ring_;
};

/// The same communicator, with its calls recorded in `recorder`, which must outlive it. GPU streams
/// don't report when they begin and end, so their calls stay "enqueued".
std::unique_ptr<Communicator> recorded(std::unique_ptr<Communicator> communicator,
                                       const std::string& group, FlightRecorder& recorder);

}  // namespace sherd::sharding
