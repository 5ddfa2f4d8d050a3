#include "sharding/comm/control_links.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "core/error.h"
#include "core/thread.h"

namespace sherd::sharding {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kBetweenPings{1000}, kForASecret{1000}, kForASend{5000};
constexpr std::size_t kLongest = std::size_t{16} << 20;
constexpr std::size_t kSecretLength = 32;
// The first byte of a message: a ping, a word for process 0, all words under a name, an abort, one because
// of a death, farewell.
constexpr char kPing = 'p', kWord = 'w', kWords = 'W', kAbort = 'a', kDeath = 'd', kFarewell = 'f';

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30));
}

bool wait_for(int file, short events, Clock::time_point deadline) {
  pollfd wanted{file, events, 0};
  int found = 0;
  do {
    found = ::poll(&wanted, 1, milliseconds_until(deadline));
  } while (found < 0 && errno == EINTR);
  return found > 0;
}

bool read_all(int file, char* bytes, std::size_t count, Clock::time_point deadline) {
  while (count > 0) {
    if (!wait_for(file, POLLIN, deadline)) return false;
    const ssize_t got = ::recv(file, bytes, count, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return false;
    bytes += got;
    count -= static_cast<std::size_t>(got);
  }
  return true;
}

bool write_all(int file, std::string_view bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(file, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(file, POLLOUT, deadline)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

void append(std::string& text, std::uint32_t number) {
  text.append(reinterpret_cast<const char*>(&number), sizeof number);
}
std::uint32_t number_at(std::string_view text) {
  std::uint32_t number = 0;
  std::memcpy(&number, text.data(), sizeof number);
  return number;
}
// A text after its length; the rest of `from` begins behind it. False if `from` is too short.
bool take(std::string_view& from, std::string& text) {
  if (from.size() < 4 || from.size() - 4 < number_at(from)) return false;
  text = from.substr(4, number_at(from));
  from.remove_prefix(4 + text.size());
  return true;
}
void put(std::string& to, std::string_view text) {
  append(to, static_cast<std::uint32_t>(text.size()));
  to += text;
}

class Socket {
 public:
  explicit Socket(int file) : file_(file) {}
  Socket(Socket&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (file_ >= 0) ::close(file_);
  }
  int file() const { return file_; }
  int release() { return std::exchange(file_, -1); }

 private:
  int file_;
};

Socket tcp_socket() {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.file() < 0) throw PeerError("no TCP socket: {}", std::strerror(errno));
  return socket;
}

void send_at_once(int file) {
  const int on = 1;
  ::setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

std::string drawn_secret() {
  unsigned char bytes[kSecretLength / 2];
  CHECK(::getrandom(bytes, sizeof bytes, 0) == sizeof bytes, "no random bytes");
  std::string secret;
  for (const unsigned char byte : bytes) secret += fmt::format("{:02x}", byte);
  return secret;
}

// Of every interface but the loopback one, in dotted form.
std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return addresses;
  for (const ifaddrs* one = all; one; one = one->ifa_next) {
    if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET) continue;
    const auto address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr;
    if (ntohl(address.s_addr) >> 24 == 127) continue;
    char text[INET_ADDRSTRLEN];
    ::inet_ntop(AF_INET, &address, text, sizeof text);
    addresses.emplace_back(text);
  }
  ::freeifaddrs(all);
  return addresses;
}

// The comparison takes as long for a secret that is nearly right as for another.
bool same_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

// The number of the process that has connected; -1: a stranger, or one that has come already.
int admitted(int file, std::string_view secret, const std::vector<int>& files) {
  char bytes[kSecretLength + 4];
  if (!read_all(file, bytes, sizeof bytes, Clock::now() + kForASecret)) return -1;
  const std::string_view greeting(bytes, sizeof bytes);
  if (!same_secret(greeting.substr(0, kSecretLength), secret)) return -1;
  const std::uint32_t process = number_at(greeting.substr(kSecretLength));
  const bool free = process >= 1 && process < files.size() && files[process] < 0;
  return free ? static_cast<int>(process) : -1;
}

}  // namespace

struct ControlLinks::Link {
  Link(int file, int process) : socket(file), process(process) {}
  Socket socket;
  const int process;  // at the other end
  std::mutex sending;
  std::string read;  // and not yet understood
  Clock::time_point heard = Clock::now();
  std::atomic<bool> open{true};
  bool farewell = false;
};

std::unique_ptr<ControlLinks> ControlLinks::listen(
    const Options& options, bool loopback,
    const std::function<void(const std::string& address)>& publish) {
  const auto deadline = Clock::now() + options.timeout;
  const Socket door = tcp_socket();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(door.file(), generic, size) != 0 || ::listen(door.file(), 4096) != 0 ||
      ::getsockname(door.file(), generic, &size) != 0) {
    throw PeerError("process 0 can't listen for the others: {}", std::strerror(errno));
  }
  const std::string secret = drawn_secret();
  std::string text = fmt::format("{} {}", secret, ntohs(address.sin_port));
  for (const std::string& own :
       loopback ? std::vector<std::string>{"127.0.0.1"} : own_addresses()) {
    text += " " + own;
  }
  publish(text);
  std::vector<int> files(static_cast<std::size_t>(options.num_processes), -1);
  const auto missing = [&] { return std::find(files.begin() + 1, files.end(), -1); };
  while (missing() != files.end()) {
    Socket guest(wait_for(door.file(), POLLIN, deadline)
                     ? ::accept4(door.file(), nullptr, nullptr, SOCK_CLOEXEC)
                     : -1);
    if (guest.file() >= 0) {
      const int process = admitted(guest.file(), secret, files);
      if (process > 0) files[static_cast<std::size_t>(process)] = guest.release();
    }
    // However many strangers knock.
    if (Clock::now() >= deadline && missing() != files.end()) {
      const auto process = missing() - files.begin();
      for (const int file : files) ::close(file);
      throw PeerError("process 0 waited {} s for process {} to connect to it.",
                      std::chrono::duration<double>(options.timeout).count(), process);
    }
  }
  std::vector<std::unique_ptr<Link>> links;
  for (int process = 1; process < options.num_processes; ++process) {
    links.push_back(std::make_unique<Link>(files[static_cast<std::size_t>(process)], process));
  }
  return std::unique_ptr<ControlLinks>(new ControlLinks(options, std::move(links)));
}

std::unique_ptr<ControlLinks> ControlLinks::connect(const Options& options,
                                                    const std::string& address) {
  const auto deadline = Clock::now() + options.timeout;
  std::istringstream words(address);
  std::string secret, host, problem = "it named no address";
  std::uint16_t port = 0;
  words >> secret >> port;
  std::string greeting = secret;
  append(greeting, static_cast<std::uint32_t>(options.process));
  while (words >> host) {
    Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    ::inet_pton(AF_INET, host.c_str(), &to.sin_addr);
    int failed =
        ::connect(socket.file(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0 ? 0 : errno;
    // One address after the other: an interface that leads nowhere must not take all the time.
    const auto patience = std::min(deadline, Clock::now() + kForASend);
    if (failed == EINPROGRESS) {
      socklen_t size = sizeof failed;
      if (!wait_for(socket.file(), POLLOUT, patience)) {
        failed = ETIMEDOUT;
      } else {
        ::getsockopt(socket.file(), SOL_SOCKET, SO_ERROR, &failed, &size);
      }
    }
    if (failed == 0 && write_all(socket.file(), greeting, patience)) {
      std::vector<std::unique_ptr<Link>> links;
      links.push_back(std::make_unique<Link>(socket.release(), 0));
      return std::unique_ptr<ControlLinks>(new ControlLinks(options, std::move(links)));
    }
    problem = fmt::format("{}: {}", host, std::strerror(failed));
  }
  throw PeerError("process {} can't connect to process 0: {}.", options.process, problem);
}

ControlLinks::ControlLinks(const Options& options, std::vector<std::unique_ptr<Link>> links)
    : process_(options.process),
      num_processes_(options.num_processes),
      links_(std::move(links)),
      timeout_(options.timeout),
      dead_(static_cast<std::size_t>(options.num_processes), false),
      wake_(::eventfd(0, EFD_CLOEXEC)) {
  for (int process = 0; process < num_processes_; ++process) {
    names_.push_back(fmt::format("process {}", process));
  }
  for (const auto& link : links_) send_at_once(link->socket.file());
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
  CHECK(names.size() == names_.size(), "{} names", names.size());
  names_ = std::move(names);
}

void ControlLinks::set_timeout(std::chrono::milliseconds timeout) {
  std::lock_guard lock(mutex_);
  timeout_ = timeout;
}

std::string ControlLinks::name_of(int process) const {
  std::lock_guard lock(mutex_);
  return names_[static_cast<std::size_t>(process)];
}

void ControlLinks::run() {
  std::vector<pollfd> files(links_.size() + 1);
  auto next_ping = Clock::now() + kBetweenPings;
  while (!over_) {
    for (std::size_t i = 0; i < links_.size(); ++i) {
      files[i] = {links_[i]->open ? links_[i]->socket.file() : -1, POLLIN, 0};
    }
    files.back() = {wake_, POLLIN, 0};
    ::poll(files.data(), files.size(), milliseconds_until(next_ping));
    for (std::size_t i = 0; i < links_.size(); ++i) {
      if (files[i].revents != 0) read_from(*links_[i]);
    }
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
  for (const auto& link : links_) {
    if (!link->open || link->farewell || Clock::now() - link->heard <= timeout) continue;
    lost(*link, fmt::format("was silent for {} s: it hangs, or its machine is gone",
                            std::chrono::duration<double>(timeout).count()));
  }
}

void ControlLinks::read_from(Link& link) {
  char bytes[65536];
  const ssize_t got = ::recv(link.socket.file(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
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

void ControlLinks::handle(Link& link, char kind, std::string_view text) {
  if (kind == kFarewell) {
    link.farewell = true;
  } else if (kind == kAbort || kind == kDeath) {
    if (kind == kDeath && !aborted()) by_death_ = true;
    if (set_reason(std::string(text))) pass_on_abort(std::string(text));
  } else if (kind == kWord) {
    std::string name;
    if (take(text, name)) hear(link.process, name, std::string(text));
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

void ControlLinks::lost(Link& link, const std::string& how) {
  link.open = false;
  if (!link.farewell && !parting_) {
    if (!aborted()) by_death_ = true;
    abort(fmt::format("{} {}.", name_of(link.process), how));
  }
  std::lock_guard lock(mutex_);
  dead_[static_cast<std::size_t>(link.process)] = true;
  std::vector<std::string> names;
  for (const auto& [name, words] : words_) names.push_back(name);
  for (const std::string& name : names) complete_locked(name);
  changed_.notify_all();
}

void ControlLinks::say(const std::string& name, const std::string& word) {
  if (process_ == 0) return hear(0, name, word);
  std::string text;
  put(text, name);
  send(*links_[0], kWord, text + word);
}

void ControlLinks::hear(int process, const std::string& name, std::string word) {
  std::lock_guard lock(mutex_);
  Words& words = words_[name];
  words.resize(static_cast<std::size_t>(num_processes_));
  words[static_cast<std::size_t>(process)] = std::move(word);
  complete_locked(name);
}

// On process 0: tells all once nobody alive is missing.
void ControlLinks::complete_locked(const std::string& name) {
  const auto found = words_.find(name);
  if (found == words_.end()) return;
  const Words& words = found->second;
  for (std::size_t process = 0; process < words.size(); ++process) {
    if (!words[process] && !dead_[process]) return;
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
  for (const auto& link : links_) send(*link, kWords, text);
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
  const bool in_time =
      changed_.wait_for(lock, timeout_, [&] { return complete_.contains(name) || aborted(); });
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
                    std::chrono::duration<double>(timeout_).count(), missing, name);
    lock.unlock();
    abort(text);
    throw PeerError("{}", text);
  }
  std::vector<std::string> words;
  for (const auto& one : complete_[name]) words.push_back(one.value_or(""));
  return words;
}

void ControlLinks::abort(const std::string& reason) {
  const std::string text = reason.empty() ? "a rank stopped" : reason;
  if (set_reason(text)) pass_on_abort(text);
}

// Whether it is the first.
bool ControlLinks::set_reason(const std::string& reason) {
  std::function<void()> call;
  {
    std::lock_guard lock(mutex_);
    if (aborted()) return false;
    reason_ = reason;
    aborted_.store(true, std::memory_order_release);
    call = on_abort_;
    changed_.notify_all();
  }
  if (call) call();
  return true;
}

void ControlLinks::pass_on_abort(const std::string& reason) {
  for (const auto& link : links_) send(*link, by_death() ? kDeath : kAbort, reason);
}

std::string ControlLinks::reason() const {
  std::lock_guard lock(mutex_);
  return reason_;
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
  CHECK(text.size() <= kLongest, "a word of {} bytes", text.size());
  std::lock_guard lock(link.sending);
  // One that can't be written to is dead or stuck; the reading side finds out which.
  if (!write_all(link.socket.file(), message, Clock::now() + kForASend)) {
    ::shutdown(link.socket.file(), SHUT_RDWR);
  }
}

}  // namespace sherd::sharding
