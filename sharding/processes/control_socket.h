/// TCP sockets whose calls have a deadline, and how the processes of a world connect to process 0:
/// it listens, and accepts connections that send the secret.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"

namespace sherd::sharding {

using ControlClock = std::chrono::steady_clock;

/// An open socket; its destructor closes it.
class Socket {
 public:
  explicit Socket(int file = -1) : file_(file) {}
  Socket(Socket&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~Socket();
  int file() const { return file_; }
  explicit operator bool() const { return file_ >= 0; }

 private:
  int file_;
};

/// For poll(): 0 if the deadline has passed.
int milliseconds_until(ControlClock::time_point deadline);

/// False if the other end doesn't accept it in time, or is gone.
bool write_all(int file, std::string_view bytes, ControlClock::time_point deadline);

/// An address as text: the secret, the port, and the hosts where it can be reached.
std::string door_address(const std::string& secret, int port,
                         const std::vector<std::string>& hosts);

class Door {
 public:
  struct Options {
    bool loopback = false;    ///< only for this machine
    int port = 0;             ///< 0: any free port
    std::string secret = {};  ///< "": a random one
    std::chrono::milliseconds for_a_greeting{1000};
  };
  /// Errors   PeerError: the machine refuses, or the port is taken.
  explicit Door(const Options& options);
  /// The secret, the port and this machine's addresses.
  const std::string& address() const { return address_; }
  /// Returns a socket to each process except 0, by number, when all have connected. Incoming
  /// connections are read concurrently. One that hasn't sent the secret within a second is refused,
  /// or sooner if more than 256 are silent.
  /// Errors   PeerError: a process hasn't connected by the deadline, however many strangers have.
  std::vector<Socket> let_in(int num_processes, std::chrono::milliseconds timeout) const;

 private:
  Socket listening_;
  std::string secret_, address_;
  std::chrono::milliseconds patience_;
};

/// The listening process refused this process, and will refuse it again.
class TurnedAway : public PeerError {
  using PeerError::PeerError;
};

/// Connects to a door as process `process`, at the first of its hosts that answers.
/// Errors   PeerError: no host answers in time, or the connection ends. TurnedAway.
Socket connect_to(const std::string& address, int process, std::chrono::milliseconds timeout);

}  // namespace sherd::sharding
