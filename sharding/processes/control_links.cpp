#include "sharding/processes/control_links.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "core/awake_time.h"
#include "core/error.h"
#include "core/thread.h"
#include "sharding/processes/control_link.h"
#include "sharding/processes/control_message.h"
#include "sharding/processes/control_socket.h"

namespace sherd::sharding {

using std::chrono::milliseconds;

std::unique_ptr<ControlLinks> ControlLinks::listen(
    const Options& options, bool loopback,
    const std::function<void(const std::string& address)>& publish) {
  const Door door({.loopback = loopback});
  publish(door.address());
  return through(options, door);
}

std::unique_ptr<ControlLinks> ControlLinks::listen_at(const Options& options, bool loopback,
                                                      int port, const std::string& secret) {
  return through(options, Door({.loopback = loopback, .port = port, .secret = secret}));
}

std::unique_ptr<ControlLinks> ControlLinks::through(const Options& options, const Door& door) {
  std::vector<Socket> sockets = door.let_in(options.num_processes, options.timeout);
  std::vector<std::unique_ptr<Link>> links;
  for (int process = 1; process < options.num_processes; ++process) {
    links.push_back(
        std::make_unique<Link>(std::move(sockets[static_cast<std::size_t>(process)]), process));
  }
  return std::unique_ptr<ControlLinks>(new ControlLinks(options, std::move(links)));
}

std::unique_ptr<ControlLinks> ControlLinks::connect(const Options& options,
                                                    const std::string& address) {
  std::vector<std::unique_ptr<Link>> links;
  links.push_back(std::make_unique<Link>(connect_to(address, options.process, options.timeout), 0));
  return std::unique_ptr<ControlLinks>(new ControlLinks(options, std::move(links)));
}

ControlLinks::ControlLinks(const Options& options, std::vector<std::unique_ptr<Link>> links)
    : process_(options.process),
      num_processes_(options.num_processes),
      links_(std::move(links)),
      timeout_(options.timeout),
      patience_(options.timeout),
      dead_(static_cast<std::size_t>(options.num_processes), false),
      wake_(::eventfd(0, EFD_CLOEXEC)) {
  for (int process = 0; process < num_processes_; ++process) {
    names_.push_back(fmt::format("process {}", process));
  }
  thread_ = start_thread("that listens to other processes", [this] { run(); });
}

ControlLinks::~ControlLinks() {
  part();
  over_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_, &one, sizeof one);
  thread_.join();
  ::close(wake_);
}

void ControlLinks::part() {
  if (parting_.exchange(true)) return;
  for (const auto& link : links_) send(*link, kFarewell, "");
}

void ControlLinks::set_names(std::vector<std::string> names) {
  std::lock_guard lock(mutex_);
  SHERD_CHECK(names.size() == names_.size(), "{} names", names.size());
  names_ = std::move(names);
}

void ControlLinks::set_timeout(std::chrono::milliseconds timeout) {
  std::lock_guard lock(mutex_);
  timeout_ = timeout;
  patience_ = std::max(patience_, timeout);
}

void ControlLinks::set_patience(std::chrono::milliseconds patience) {
  std::lock_guard lock(mutex_);
  patience_ = patience;
}

std::string ControlLinks::name_of(int process) const {
  std::lock_guard lock(mutex_);
  return names_[static_cast<std::size_t>(process)];
}

void ControlLinks::handle(Link& link, char kind, std::string_view text) {
  if (kind == kFarewell) {
    link.farewell = true;
  } else if (kind == kAbort || kind == kDeath || kind == kGivenUp) {
    if (kind != kAbort && !aborted()) by_death_ = true;
    if (kind == kGivenUp && !aborted()) given_up_ = true;
    if (set_reason(std::string(text))) pass_on_abort(std::string(text));
  } else if (kind == kWord) {
    std::string name;
    if (take(text, name)) hear(link.process, name, std::string(text));
  } else if (kind == kNotice) {
    std::string to, name;
    if (take(text, to) && take(text, name)) deliver(std::atoi(to.c_str()), name, text);
  } else if (kind == kWords) {
    std::string name, word;
    Words words;
    take(text, name);
    while (!text.empty()) {
      const bool there = text[0] != 0;
      text.remove_prefix(1);
      if (!take(text, word)) break;
      words.push_back(there ? std::optional(word) : std::nullopt);
    }
    words.resize(static_cast<std::size_t>(num_processes_));
    std::lock_guard lock(mutex_);
    complete_[name] = std::move(words);
    changed_.notify_all();
  }
}

void ControlLinks::say(const std::string& name, const std::string& word) {
  if (process_ == 0) return hear(0, name, word);
  std::string text;
  put(text, name);
  send(*links_[0], kWord, text + word);
}

void ControlLinks::hear(int process, const std::string& name, std::string word) {
  std::lock_guard in_order(telling_);
  std::string complete;
  {
    std::lock_guard lock(mutex_);
    Words& words = words_[name];
    words.resize(static_cast<std::size_t>(num_processes_));
    words[static_cast<std::size_t>(process)] = std::move(word);
    complete = complete_locked(name);
  }
  tell_all(complete);
}

// On process 0: what to send to all once no live process is missing; "" until then.
std::string ControlLinks::complete_locked(const std::string& name) {
  const auto found = words_.find(name);
  if (found == words_.end()) return "";
  const Words& words = found->second;
  for (std::size_t process = 0; process < words.size(); ++process) {
    if (!words[process] && !dead_[process]) return "";
  }
  std::string text;
  put(text, name);
  for (const auto& word : words) {
    text += static_cast<char>(word.has_value());
    put(text, word.value_or(""));
  }
  complete_[name] = words;
  words_.erase(found);
  changed_.notify_all();
  return text;
}

// Not under the lock: a process that is stuck takes some seconds to be written to.
void ControlLinks::tell_all(const std::string& words) {
  if (words.empty()) return;
  for (const auto& link : links_) send(*link, kWords, words);
}

std::optional<ControlLinks::Words> ControlLinks::heard(const std::string& name,
                                                       std::chrono::milliseconds within) {
  std::unique_lock lock(mutex_);
  const auto there = [&] { return complete_.contains(name); };
  if (process_ == 0) {
    changed_.wait_for(lock, within, there);
  } else {  // whoever would have passed it on may be gone
    changed_.wait_for(lock, within, [&] { return there() || dead_[0]; });
  }
  if (!there()) return std::nullopt;
  return complete_[name];
}

std::vector<std::string> ControlLinks::all_gather(const std::string& name,
                                                  const std::string& word) {
  say(name, word);
  std::unique_lock lock(mutex_);
  const auto over = [&] { return complete_.contains(name) || aborted(); };
  bool in_time = wait_awake(changed_, lock, patience_, over);
  if (!in_time) {
    lock.unlock();
    catch_up();
    lock.lock();
    in_time = over();
  }
  // Complete, even if someone aborted right after; but not where a dead process is missing.
  const auto found = complete_.find(name);
  const bool complete =
      found != complete_.end() &&
      std::find(found->second.begin(), found->second.end(), std::nullopt) == found->second.end();
  if (!complete && aborted()) throw PeerError("{}", reason_);
  if (!in_time) {
    std::string missing = "the others";
    if (process_ == 0) {
      const Words& words = words_[name];
      const auto first = std::find(words.begin(), words.end(), std::nullopt);
      missing = names_[static_cast<std::size_t>(first - words.begin())];
    }
    const std::string text =
        fmt::format("{} waited {} s for {}: {}", names_[static_cast<std::size_t>(process_)],
                    std::chrono::duration<double>(patience_).count(), missing, name);
    lock.unlock();
    abort(text);
    throw PeerError("{}", text);
  }
  std::vector<std::string> words;
  for (const auto& one : complete_[name]) words.push_back(one.value_or(""));
  complete_.erase(name);  // nobody can complete the next ones before this process has said its own
  return words;
}

void ControlLinks::tell(const std::vector<int>& processes, const std::string& name,
                        const std::string& notice) {
  for (const int process : processes) deliver(process, name, notice);
}

// To this process, or through process 0 to another one; a number of no process comes from a
// stranger.
void ControlLinks::deliver(int process, const std::string& name, std::string_view notice) {
  if (process == process_) {
    std::lock_guard lock(mutex_);
    notices_[name] = notice;
    changed_.notify_all();
    return;
  }
  if (process < 0 || process >= num_processes_) return;
  std::string text;
  put(text, std::to_string(process));
  put(text, name);
  Link& way = *links_[process_ == 0 ? static_cast<std::size_t>(process - 1) : 0];
  send(way, kNotice, text + std::string(notice));
}

std::optional<std::string> ControlLinks::told(const std::string& name, milliseconds within) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, within, [&] { return notices_.contains(name) || aborted(); });
  const auto found = notices_.find(name);
  return found == notices_.end() ? std::nullopt : std::optional(found->second);
}

void ControlLinks::abort(const std::string& reason) {
  const std::string text = reason.empty() ? "a rank stopped" : reason;
  if (set_reason(text)) pass_on_abort(text);
}

// Whether it is the first.
bool ControlLinks::set_reason(const std::string& reason) {
  std::function<void()> call;
  std::function<void(const std::string&)> tell;
  {
    std::lock_guard lock(mutex_);
    if (aborted()) return false;
    reason_ = reason;
    aborted_.store(true, std::memory_order_release);
    call = on_abort_;
    // A process that isn't connected to process 1 considers it alive.
    if (by_death() && (process_ == 0 || (process_ == 1 && dead_[0]))) tell = on_death_;
    changed_.notify_all();
  }
  if (tell) tell(reason);
  if (call) call();
  return true;
}

void ControlLinks::pass_on_abort(const std::string& reason) {
  std::lock_guard in_order(telling_);
  std::vector<char> dead;
  {
    std::lock_guard lock(mutex_);
    dead = dead_;
  }
  const auto is_dead = [&](const auto& link) {
    return dead[static_cast<std::size_t>(link->process)] != 0;
  };
  for (const auto& link : links_) {
    if (!is_dead(link)) send(*link, by_death() ? kDeath : kAbort, reason);
  }
  for (const auto& link : links_) {  // last: it may take seconds
    if (is_dead(link)) send(*link, kGivenUp, reason);
  }
}

std::string ControlLinks::reason() const {
  std::lock_guard lock(mutex_);
  return reason_;
}

void ControlLinks::on_death(std::function<void(const std::string&)> call) {
  std::lock_guard lock(mutex_);
  on_death_ = std::move(call);
}

void ControlLinks::on_abort(std::function<void()> call) {
  {
    std::lock_guard lock(mutex_);
    on_abort_ = call;
    if (!aborted()) return;
  }
  if (call) call();
}

void ControlLinks::send(Link& link, char kind, std::string_view text) {
  if (!link.open) return;
  std::string message(1, kind);
  put(message, text);
  SHERD_CHECK(text.size() <= kLongest, "a word of {} bytes", text.size());
  std::unique_lock lock(link.sending, std::defer_lock);
  if (kind == kPing) {
    if (!lock.try_lock()) return;  // what is being written tells as much
  } else {
    lock.lock();
  }
  // A long message over a slow network may take long, but each part of it is taken in time.
  constexpr std::size_t kPart = std::size_t{64} << 10;
  for (std::size_t begin = 0; begin < message.size(); begin += kPart) {
    const std::string_view part = std::string_view(message).substr(begin, kPart);
    const auto deadline = ControlClock::now() + kForASend;
    if (write_all(link.socket.file(), part, deadline)) continue;
    if (ControlClock::now() >= deadline) link.stuck = true;
    ::shutdown(link.socket.file(), SHUT_RDWR);  // the reading side says what is known
    return;
  }
}

}  // namespace sherd::sharding
