#include "sharding/processes/environment.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

#include "core/error.h"
#include "sharding/processes/control_socket.h"

namespace sherd::sharding {
namespace {

constexpr int kMostProcesses = 65'536;
constexpr std::size_t kLongestSecret = 256;

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

int number(const char* name, int least, int most) {
  const std::string text = variable(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most) {
    return value;
  }
  throw UsageError(
      "the environment has {}={}, but a number from {} to {} is needed: RANK, WORLD_SIZE, "
      "LOCAL_RANK, MASTER_ADDR and MASTER_PORT describe the processes of a world.",
      name, text.empty() ? "nothing" : text, least, most);
}

// In dotted form.
std::vector<std::string> addresses_of(const std::string& host) {
  addrinfo wanted{};
  wanted.ai_family = AF_INET;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int failed = ::getaddrinfo(host.c_str(), nullptr, &wanted, &found); failed != 0) {
    throw UsageError("MASTER_ADDR is {}: {}.", host, ::gai_strerror(failed));
  }
  std::vector<std::string> addresses;
  for (const addrinfo* one = found; one; one = one->ai_next) {
    char text[INET_ADDRSTRLEN];
    const auto* address = reinterpret_cast<const sockaddr_in*>(one->ai_addr);
    ::inet_ntop(AF_INET, &address->sin_addr, text, sizeof text);
    addresses.emplace_back(text);
  }
  ::freeaddrinfo(found);
  return addresses;
}

bool is_loopback(const std::string& host) {
  in_addr address{};
  return host == "localhost" ||
         (::inet_pton(AF_INET, host.c_str(), &address) == 1 && host.starts_with("127."));
}

bool is_one_word(std::string_view text) {
  return !text.empty() && text.size() <= kLongestSecret &&
         text.find_first_of(" \t\n\r") == std::string_view::npos;
}

// Process 0 may not be there yet.
std::unique_ptr<ControlLinks> connect_when_there(const ControlLinks::Options& options,
                                                 const std::string& address) {
  constexpr std::chrono::milliseconds kBetweenTries{200};
  const auto deadline = ControlClock::now() + options.timeout;
  while (true) {
    try {
      ControlLinks::Options rest = options;
      rest.timeout = std::chrono::milliseconds(milliseconds_until(deadline));
      auto links = ControlLinks::connect(rest, address);
      links->set_timeout(options.timeout);
      return links;
    } catch (const TurnedAway&) {
      throw;
    } catch (const PeerError&) {
      if (ControlClock::now() + kBetweenTries >= deadline) throw;
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
}

class EnvironmentProcesses final : public Processes {
 public:
  EnvironmentProcesses(std::unique_ptr<ControlLinks> links, int local_process)
      : Processes(std::move(links)), local_process_(local_process) {
    learn_hosts();
  }

  int index_on_this_host() const override { return local_process_; }
  bool carries_tensors() const override { return false; }
  std::shared_ptr<Rendezvous> make_rendezvous(int, std::chrono::milliseconds,
                                              const MachinesOfProcesses&) override {
    SHERD_CHECK(false, "processes that only NCCL connects");
    __builtin_unreachable();
  }

 private:
  const int local_process_;
};

}  // namespace

std::optional<EnvironmentWorld> environment_world() {
  if (variable("RANK").empty() || variable("WORLD_SIZE").empty()) return std::nullopt;
  EnvironmentWorld world;
  world.num_processes = number("WORLD_SIZE", 1, kMostProcesses);
  if (world.num_processes == 1) return std::nullopt;
  world.process = number("RANK", 0, world.num_processes - 1);
  world.local_process = number("LOCAL_RANK", 0, world.num_processes - 1);
  world.port = number(variable("SHERD_PORT").empty() ? "MASTER_PORT" : "SHERD_PORT", 1, 65'534);
  if (variable("SHERD_PORT").empty() && variable("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    ++world.port;
  }
  world.host = variable("MASTER_ADDR");
  if (world.host.empty()) {
    throw UsageError(
        "the environment has RANK and WORLD_SIZE={}, but no MASTER_ADDR: the machine of process 0.",
        world.num_processes);
  }
  world.loopback = is_loopback(world.host);
  world.secret = variable("SHERD_SECRET");
  if (world.secret.empty() && world.loopback) world.secret = fmt::format("user-{}", ::getuid());
  if (!is_one_word(world.secret)) {
    throw UsageError(
        "SHERD_SECRET is {}: processes on several machines need a common secret, one word of at "
        "most {} characters, such as the output of `openssl rand -hex 16`.",
        world.secret.empty() ? "not set" : "not a single word", kLongestSecret);
  }
  return world;
}

std::unique_ptr<Processes> join_environment(const EnvironmentWorld& world,
                                            std::chrono::milliseconds timeout) {
  const ControlLinks::Options options{world.process, world.num_processes, timeout};
  // Process 0 listens at this address whatever loopback address was named, such as Debian's own
  // 127.0.1.1.
  const auto addresses = [&] {
    return world.loopback ? std::vector<std::string>{"127.0.0.1"} : addresses_of(world.host);
  };
  auto links =
      world.process == 0
          ? ControlLinks::listen_at(options, world.loopback, world.port, world.secret)
          : connect_when_there(options, door_address(world.secret, world.port, addresses()));
  return std::make_unique<EnvironmentProcesses>(std::move(links), world.local_process);
}

}  // namespace sherd::sharding
