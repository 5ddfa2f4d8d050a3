/// One connection of ControlLinks, and the kinds of messages on it. Used only by its sources.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>

#include "sharding/processes/control_links.h"
#include "sharding/processes/control_socket.h"

namespace sherd::sharding {

inline constexpr std::chrono::milliseconds kBetweenPings{1000}, kForASend{5000};
inline constexpr std::size_t kLongest = std::size_t{16} << 20;
// First byte of a message: a ping; a word for process 0; all words under a name; a notice for the
// process whose number comes first; an abort; an abort because of a death; the same, sent to the
// process that is considered dead; a farewell.
inline constexpr char kPing = 'p', kWord = 'w', kWords = 'W', kNotice = 'n', kAbort = 'a',
                      kDeath = 'd', kGivenUp = 'g', kFarewell = 'f';

struct ControlLinks::Link {
  Link(Socket open, int process) : socket(std::move(open)), process(process) {}
  const Socket socket;
  const int process;  // the process at the other end
  std::mutex sending;
  std::string read;  // received and not yet parsed
  ControlClock::time_point heard = ControlClock::now();
  std::atomic<bool> open{true};
  std::atomic<bool> stuck{false};  // it took no part of a message for kForASend
  bool farewell = false;
};

}  // namespace sherd::sharding
