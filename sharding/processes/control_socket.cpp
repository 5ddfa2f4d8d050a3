#include "sharding/processes/control_socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
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

constexpr milliseconds kForASecret{1000}, kForAnAddress{5000};
constexpr std::size_t kSecretLength = 32, kLongestSecret = 1024;
constexpr std::string_view kWelcome = "+";

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
int admitted(int file, std::string_view secret, const std::vector<Socket>& sockets) {
  char bytes[kLongestSecret + 4];
  const std::size_t length = secret.size() + 4;
  if (!read_all(file, bytes, length, Clock::now() + kForASecret)) return -1;
  const std::string_view greeting(bytes, length);
  if (!same_secret(greeting.substr(0, secret.size()), secret)) return -1;
  std::uint32_t process = 0;
  std::memcpy(&process, bytes + secret.size(), sizeof process);
  const bool free = process >= 1 && process < sockets.size() && !sockets[process];
  return free ? static_cast<int>(process) : -1;
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

// 0, or why the other end isn't reached.
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
    : listening_(tcp_socket(0)), secret_(options.secret.empty() ? drawn_secret() : options.secret) {
  CHECK(secret_.size() <= kLongestSecret, "a secret of {} bytes", secret_.size());
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

std::vector<Socket> Door::let_in(int num_processes, milliseconds timeout) const {
  const auto deadline = Clock::now() + timeout;
  std::vector<Socket> sockets(static_cast<std::size_t>(num_processes));
  const auto missing = [&] {
    return std::find_if(sockets.begin() + 1, sockets.end(), [](const Socket& s) { return !s; });
  };
  while (missing() != sockets.end()) {
    if (Clock::now() >= deadline) {
      throw PeerError("process 0 waited {} s for process {} to connect to it.",
                      std::chrono::duration<double>(timeout).count(), missing() - sockets.begin());
    }
    if (!wait_for(listening_.file(), POLLIN, deadline)) continue;
    Socket guest(::accept4(listening_.file(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!guest) continue;
    const int process = admitted(guest.file(), secret_, sockets);
    if (process < 0) continue;
    send_at_once(guest);
    if (!write_all(guest.file(), kWelcome, Clock::now() + kForASecret)) continue;
    sockets[static_cast<std::size_t>(process)] = std::move(guest);
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
      char welcome = 0;  // behind all others that knock
      if (read_all(socket.file(), &welcome, 1, deadline)) return socket;
      throw TurnedAway(
          "process {} was refused by the program that listens at {}:{}: the secrets differ, "
          "another "
          "process "
          "has the same number, or it isn't process 0 of this run.",
          process, host, port);
    }
    problem = fmt::format("{}: {}", host, std::strerror(failed));
  }
  throw PeerError("process {} can't connect to process 0: {}.", process, problem);
}

}  // namespace sherd::sharding
