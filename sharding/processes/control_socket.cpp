#include "sharding/processes/control_socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "core/error.h"

namespace sherd::sharding {
namespace {

using Clock = ControlClock;
using std::chrono::milliseconds;

constexpr milliseconds kForAnAddress{5000}, kForAByte{1000};
constexpr std::size_t kSecretLength = 32, kSecretLimit = 1024;
constexpr char kWelcome = '+', kRefused = '-';

bool wait_for(int file, short events, Clock::time_point deadline) {
  pollfd wanted{file, events, 0};
  int found = 0;
  do {
    found = ::poll(&wanted, 1, milliseconds_until(deadline));
  } while (found < 0 && errno == EINTR);
  return found > 0;
}

enum class Read { kDone, kClosed, kLate };

Read read_all(int file, char* bytes, std::size_t count, Clock::time_point deadline) {
  while (count > 0) {
    if (!wait_for(file, POLLIN, deadline)) return Read::kLate;
    const ssize_t got = ::recv(file, bytes, count, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return Read::kClosed;
    bytes += got;
    count -= static_cast<std::size_t>(got);
  }
  return Read::kDone;
}

std::string drawn_secret() {
  unsigned char bytes[kSecretLength / 2];
  SHERD_CHECK(::getrandom(bytes, sizeof bytes, 0) == sizeof bytes, "no random bytes");
  std::string secret;
  for (const unsigned char byte : bytes) secret += fmt::format("{:02x}", byte);
  return secret;
}

// Addresses of every interface except the loopback one, in dotted form.
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

Socket tcp_socket(int flags) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  if (!socket) throw PeerError("no TCP socket: {}", std::strerror(errno));
  return socket;
}

void send_at_once(const Socket& socket) {
  const int on = 1;
  ::setsockopt(socket.file(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// 0, or why the other end can't be reached.
int reach(const Socket& socket, const std::string& host, std::uint16_t port,
          Clock::time_point deadline) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  ::inet_pton(AF_INET, host.c_str(), &to.sin_addr);
  if (::connect(socket.file(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_for(socket.file(), POLLOUT, deadline)) return ETIMEDOUT;
  int failed = 0;
  socklen_t size = sizeof failed;
  ::getsockopt(socket.file(), SOL_SOCKET, SO_ERROR, &failed, &size);
  return failed;
}

}  // namespace

Socket::~Socket() {
  if (file_ >= 0) ::close(file_);
}

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30));
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

std::string door_address(const std::string& secret, int port,
                         const std::vector<std::string>& hosts) {
  std::string address = fmt::format("{} {}", secret, port);
  for (const std::string& host : hosts) address += " " + host;
  return address;
}

Door::Door(const Options& options)
    : listening_(tcp_socket(0)),
      secret_(options.secret.empty() ? drawn_secret() : options.secret),
      patience_(options.for_a_greeting) {
  SHERD_CHECK(secret_.size() <= kSecretLimit, "a secret of {} bytes", secret_.size());
  const bool loopback = options.loopback;
  // The port of a run that has just ended may still be waited for.
  const int on = 1;
  ::setsockopt(listening_.file(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(options.port));
  address.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listening_.file(), generic, size) != 0 || ::listen(listening_.file(), 4096) != 0 ||
      ::getsockname(listening_.file(), generic, &size) != 0) {
    const std::string problem = std::strerror(errno);
    throw PeerError("process 0 can't listen for the others{}: {}",
                    options.port == 0 ? "" : fmt::format(" on port {}", options.port), problem);
  }
  address_ = door_address(secret_, ntohs(address.sin_port),
                          loopback ? std::vector<std::string>{"127.0.0.1"} : own_addresses());
}

namespace {

// An incoming connection, from the first byte of its greeting to the last.
struct Guest {
  Socket socket;
  Clock::time_point deadline;
  std::string greeting;
};

enum class Said { kPart, kAll, kNothingMore };

Said read_greeting(Guest& guest, std::size_t length) {
  char bytes[kSecretLimit + 4];
  const ssize_t got =
      ::recv(guest.socket.file(), bytes, length - guest.greeting.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Said::kPart;
  if (got <= 0) return Said::kNothingMore;
  guest.greeting.append(bytes, static_cast<std::size_t>(got));
  return guest.greeting.size() == length ? Said::kAll : Said::kPart;
}

// All incoming connections, read concurrently.
class Hall {
 public:
  Hall(const Socket& listening, std::string_view secret, milliseconds patience,
       std::vector<Socket>& sockets)
      : listening_(listening), secret_(secret), patience_(patience), sockets_(sockets) {}

  void wait(Clock::time_point deadline) {
    std::vector<pollfd> files = {{listening_.file(), POLLIN, 0}};
    for (const Guest& guest : guests_) {
      files.push_back({guest.socket.file(), POLLIN, 0});
      deadline = std::min(deadline, guest.deadline);
    }
    ::poll(files.data(), files.size(), milliseconds_until(deadline));
    const auto now = Clock::now();
    for (std::size_t i = guests_.size(); i-- > 0;) {
      const Said said =
          files[i + 1].revents == 0 ? Said::kPart : read_greeting(guests_[i], secret_.size() + 4);
      const bool late = said == Said::kPart && guests_[i].deadline <= now;
      if (said == Said::kAll) answer(guests_[i]);
      // A connection that has sent nothing may be slow, and can come again.
      if (late && !guests_[i].greeting.empty()) say(guests_[i], kRefused);
      if (said != Said::kPart || late) {
        guests_.erase(guests_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    if (files[0].revents != 0) accept();
  }

 private:
  static constexpr std::size_t kMostGuests = 256;

  // If too many have sent nothing, the one that has been silent longest is dropped.
  void accept() {
    Socket socket(::accept4(listening_.file(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket && (errno == EMFILE || errno == ENFILE)) {
      throw PeerError(
          "process 0 can't take in {} processes: {}. Raise the limit of open files (ulimit -n).",
          sockets_.size(), std::strerror(errno));
    }
    if (!socket) return;
    if (guests_.size() == kMostGuests) guests_.erase(guests_.begin());
    guests_.push_back({std::move(socket), Clock::now() + patience_, {}});
  }

  void answer(Guest& guest) {
    const std::string_view greeting = guest.greeting;
    std::uint32_t process = 0;
    std::memcpy(&process, greeting.data() + secret_.size(), sizeof process);
    const bool comes_in = same_secret(greeting.substr(0, secret_.size()), secret_) &&
                          process >= 1 && process < sockets_.size() && !sockets_[process];
    send_at_once(guest.socket);
    const bool heard = say(guest, comes_in ? kWelcome : kRefused);
    if (comes_in && heard) sockets_[process] = std::move(guest.socket);
  }

  static bool say(const Guest& guest, char word) {
    return write_all(guest.socket.file(), {&word, 1}, Clock::now() + kForAByte);
  }

  const Socket& listening_;
  const std::string_view secret_;
  const milliseconds patience_;
  std::vector<Socket>& sockets_;  // of those that were let in
  std::vector<Guest> guests_;     // in the order in which they came
};

// A file for each process, as far as the hard limit allows.
void allow_files(int num_processes) {
  constexpr rlim_t kOthers = 512;
  const rlim_t wanted = kOthers + static_cast<rlim_t>(num_processes);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

std::vector<Socket> Door::let_in(int num_processes, milliseconds timeout) const {
  allow_files(num_processes);
  const auto deadline = Clock::now() + timeout;
  std::vector<Socket> sockets(static_cast<std::size_t>(num_processes));
  Hall hall(listening_, secret_, patience_, sockets);
  const auto missing = [&] {
    return std::find_if(sockets.begin() + 1, sockets.end(), [](const Socket& s) { return !s; });
  };
  while (missing() != sockets.end()) {
    if (Clock::now() >= deadline) {
      throw PeerError("process 0 waited {} s for process {} to connect to it.",
                      std::chrono::duration<double>(timeout).count(), missing() - sockets.begin());
    }
    hall.wait(deadline);
  }
  return sockets;
}

Socket connect_to(const std::string& address, int process, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::istringstream words(address);
  std::string secret, host, problem = "it named no address";
  std::uint16_t port = 0;
  words >> secret >> port;
  const auto number = static_cast<std::uint32_t>(process);
  const std::string greeting =
      secret + std::string(reinterpret_cast<const char*>(&number), sizeof number);
  while (words >> host) {
    Socket socket = tcp_socket(SOCK_NONBLOCK);
    // One address after the other: an interface that leads nowhere must not take all the time.
    const auto patience = std::min(deadline, Clock::now() + kForAnAddress);
    const int failed = reach(socket, host, port, patience);
    if (failed == 0 && write_all(socket.file(), greeting, patience)) {
      send_at_once(socket);
      char word = 0;
      const Read read = read_all(socket.file(), &word, 1, deadline);
      if (read == Read::kDone && word == kWelcome) return socket;
      if (read == Read::kLate) {
        throw PeerError(
            "process {} waited {} s for an answer from {}:{}: process 0 is slow, or was stopped.",
            process, std::chrono::duration<double>(timeout).count(), host, port);
      }
      if (read == Read::kClosed) {
        throw PeerError(
            "process {} had no answer from the program that listens at {}:{}: process 0 has ended, "
            "or it isn't process 0.",
            process, host, port);
      }
      throw TurnedAway(
          "process {} was refused by the program that listens at {}:{}: the secrets differ, "
          "another "
          "process has the same number, or it isn't process 0 of this run.",
          process, host, port);
    }
    problem = fmt::format("{}: {}", host, std::strerror(failed));
  }
  throw PeerError("process {} can't connect to process 0: {}.", process, problem);
}

}  // namespace sherd::sharding
