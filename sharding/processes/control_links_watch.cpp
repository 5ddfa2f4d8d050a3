// The thread of ControlLinks: it reads, pings, and finds out who has died.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/awake_time.h"
#include "core/error.h"
#include "sharding/processes/control_link.h"
#include "sharding/processes/control_message.h"

namespace sherd::sharding {

using Clock = ControlClock;

void ControlLinks::run() {
  std::vector<pollfd> files(links_.size() + 1);
  auto next_ping = Clock::now() + kBetweenPings;
  AwakeTime awake(3 * kBetweenPings);
  while (!over_) {
    for (std::size_t i = 0; i < links_.size(); ++i) {
      files[i] = {links_[i]->open ? links_[i]->socket.file() : -1, POLLIN, 0};
    }
    files.back() = {wake_, POLLIN, 0};
    ::poll(files.data(), files.size(), milliseconds_until(next_ping));
    // The others may have been stopped, too, and continue later.
    const auto stopped = awake.stopped();
    for (const auto& link : links_) link->heard += stopped;
    for (std::size_t i = 0; i < links_.size(); ++i) {
      if (files[i].revents != 0) read_from(*links_[i]);
    }
    if (files.back().revents != 0) catch_up_now();
    if (Clock::now() < next_ping) continue;
    next_ping = Clock::now() + kBetweenPings;
    for (const auto& link : links_) send(*link, kPing, "");
    check_silence();
  }
}

// A stopped process says nothing; nor does a machine that has lost its power.
void ControlLinks::check_silence() {
  std::chrono::milliseconds timeout;
  {
    std::lock_guard lock(mutex_);
    timeout = std::max<std::chrono::milliseconds>(timeout_, 3 * kBetweenPings);
  }
  const auto is_silent = [&](const Link& link) {
    return link.open && !link.farewell && Clock::now() - link.heard > timeout;
  };
  for (const auto& link : links_) {
    // It may be this process that was stopped: what came meanwhile is read first.
    if (is_silent(*link)) read_all_from(*link);
    if (!is_silent(*link)) continue;
    lost(*link, fmt::format("was silent for {} s: it hangs, or its machine is gone",
                            std::chrono::duration<double>(timeout).count()));
  }
}

void ControlLinks::read_all_from(Link& link) {
  pollfd file{link.socket.file(), POLLIN, 0};
  while (link.open && ::poll(&file, 1, 0) > 0) read_from(link);
}

void ControlLinks::read_from(Link& link) {
  char bytes[65536];
  const ssize_t got = ::recv(link.socket.file(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0 && link.stuck) {
    return lost(link, fmt::format("took no message for {} s: it hangs, or its machine is gone",
                                  std::chrono::duration<double>(kForASend).count()));
  }
  if (got <= 0) return lost(link, "ended without a word: it was killed, or crashed");
  link.heard = Clock::now();
  link.read.append(bytes, static_cast<std::size_t>(got));
  std::string_view rest = link.read;
  while (rest.size() >= 5) {
    const std::size_t length = number_at(rest.substr(1));
    if (length > kLongest) return lost(link, "sent what isn't a message");
    if (rest.size() < 5 + length) break;
    handle(link, rest[0], rest.substr(5, length));
    rest.remove_prefix(5 + length);
  }
  link.read.erase(0, link.read.size() - rest.size());
}

void ControlLinks::catch_up_now() {
  std::uint64_t asked = 0;
  [[maybe_unused]] const auto read = ::read(wake_, &asked, sizeof asked);
  std::uint64_t upto = 0;
  {
    std::lock_guard lock(mutex_);
    upto = catch_ups_asked_;
  }
  for (const auto& link : links_) read_all_from(*link);
  std::lock_guard lock(mutex_);
  catch_ups_done_ = upto;
  changed_.notify_all();
}

void ControlLinks::catch_up() {
  std::unique_lock lock(mutex_);
  const std::uint64_t asked = ++catch_ups_asked_;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_, &one, sizeof one);
  changed_.wait_for(lock, kForASend, [&] { return catch_ups_done_ >= asked || aborted(); });
}

// A silent process gets the reason too: when it continues, it must not blame the others for their
// end.
void ControlLinks::lost(Link& link, const std::string& how) {
  {
    std::lock_guard lock(mutex_);
    dead_[static_cast<std::size_t>(link.process)] = true;
  }
  if (!link.farewell && !parting_) {
    if (!aborted()) by_death_ = true;
    abort(fmt::format("{} {}.", name_of(link.process), how));
  }
  link.open = false;
  std::lock_guard in_order(telling_);
  std::vector<std::string> complete;
  {
    std::lock_guard lock(mutex_);
    std::vector<std::string> names;
    for (const auto& [name, words] : words_) names.push_back(name);
    for (const std::string& name : names) complete.push_back(complete_locked(name));
    changed_.notify_all();
  }
  for (const std::string& words : complete) tell_all(words);
}

}  // namespace sherd::sharding
