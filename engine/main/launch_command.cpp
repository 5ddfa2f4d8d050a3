#include "engine/main/launch_command.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "core/error.h"
#include "sharding/processes/mpi.h"

extern char** environ;

namespace sherd::main {
namespace {

std::atomic<pid_t> child{0};
std::atomic<bool> asked_to_stop{false};

// mpirun passes SIGUSR1 on to every process; at SIGTERM it would kill them a second later.
extern "C" void pass_on(int) {
  asked_to_stop = true;
  if (child > 0) ::kill(child, SIGUSR1);
}
// Ctrl-C reaches mpirun from the terminal.
extern "C" void note_interrupt(int) {
  asked_to_stop = true;
}

// What is ignored stays so, as nohup wants it.
void install(int signal, void (*handler)(int)) {
  struct sigaction before {};
  CHECK(::sigaction(signal, nullptr, &before) == 0);
  if (before.sa_handler == SIG_IGN) return;
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  CHECK(::sigaction(signal, &action, nullptr) == 0);
}

std::string own_path() {
  std::array<char, 4096> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  CHECK(length > 0, "/proc/self/exe can't be read");
  return {path.data(), static_cast<std::size_t>(length)};
}

// mpirun's exit code.
int run_mpirun(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t started = 0;
  const int failed =
      ::posix_spawnp(&started, "mpirun", nullptr, nullptr, arguments.data(), environ);
  if (failed != 0) {
    throw UsageError("mpirun can't be started: {}. Install openmpi-bin.", std::strerror(failed));
  }
  child = started;
  if (asked_to_stop) ::kill(started, SIGUSR1);  // before there was a process to pass it on to
  int status = 0;
  while (::waitpid(started, &status, 0) < 0) {
    CHECK(errno == EINTR, "waitpid: {}", std::strerror(errno));
  }
  child = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A process has died or hung: what may not happen again. Wrong recipes, full disks and losses that aren't
// finite would.
bool is_retryable(int code) {
  constexpr int kPeer = 4;           // CONTRIBUTING.md: exit codes
  constexpr int kLostMachine = 205;  // mpirun's, where its helper on another machine has gone
  for (const int signal : {SIGABRT, SIGBUS, SIGKILL, SIGSEGV}) {
    if (code == 128 + signal) return true;
  }
  return code == kPeer || code == kLostMachine;
}

}  // namespace

LaunchCommand::LaunchCommand(CLI::App& app)
    : command_(app.add_subcommand("launch", "Start a command in several processes, with mpirun")) {
  command_->add_option("-n,--processes", num_processes_, "Number of processes")
      ->type_name("N")
      ->check(CLI::Range(1, 65536))
      ->required();
  command_->add_option("--hosts", hosts_, "Machines and processes on each: node1:4,node2:4")
      ->type_name("LIST");
  command_
      ->add_option("--restarts", num_restarts_,
                   "Number of restarts from the newest checkpoint, when a process has died or "
                   "hung")
      ->type_name("N")
      ->check(CLI::Range(0, 1'000'000));
  command_
      ->add_option("--min-processes", min_processes_,
                   "With --hosts and --restarts: restart without machines that don't respond, "
                   "with at least N processes")
      ->type_name("N")
      ->check(CLI::Range(1, 65536));
  command_->add_option("command", words_, "After --: the command, such as train RECIPE")
      ->type_name("COMMAND")
      ->required();
}

LaunchCommand::World LaunchCommand::first_world() const {
  World world{num_processes_, {}};
  std::istringstream list(hosts_);
  for (std::string host; std::getline(list, host, ',');) {
    const std::size_t colon = host.find(':');
    const std::string name = host.substr(0, colon);
    int slots = 1;
    if (colon != std::string::npos) {
      const char *begin = host.data() + colon + 1, *end = host.data() + host.size();
      const auto [last, error] = std::from_chars(begin, end, slots);
      if (error != std::errc() || last != end || slots < 1) slots = 0;
    }
    if (name.empty() || slots == 0) {
      throw UsageError(
          "--hosts has \"{}\"; expected machines and processes on each: node1:4,node2:4.", host);
    }
    world.hosts.push_back({name, slots});
  }
  if (min_processes_ > 0 && (world.hosts.empty() || num_restarts_ == 0)) {
    throw UsageError(
        "--min-processes is for restarts on other machines; add --hosts and --restarts.");
  }
  int slots = 0;
  for (const Host& host : world.hosts) slots += host.slots;
  if (min_processes_ > 0 && slots < num_processes_) {
    throw UsageError(
        "--hosts has room for {} processes, and -n is {}. To know what machines that are left can "
        "take, --min-processes needs room for all: node1:4,node2:4.",
        slots, num_processes_);
  }
  if (min_processes_ > num_processes_) {
    throw UsageError("--min-processes is {}, above the {} processes to start with (-n).",
                     min_processes_, num_processes_);
  }
  return world;
}

// Asked by mpirun itself, so in the way in which it would start a process there.
LaunchCommand::World LaunchCommand::without_lost_hosts(const World& world) const {
  World left;
  for (const Host& host : world.hosts) {
    std::vector<std::string> words = {"mpirun", "--timeout", "15", "--quiet"};
    if (::geteuid() == 0) words.emplace_back("--allow-run-as-root");
    words.insert(words.end(), {"--host", host.name, "-n", "1", "true"});
    const int code = run_mpirun(std::move(words));
    if (asked_to_stop) return world;
    if (code == 0) {
      left.hosts.push_back(host);
      left.num_processes += host.slots;
    } else {
      fmt::print(stderr, "sherd: {} doesn't answer, and is left out.\n", host.name);
    }
  }
  // With more processes than slots, too, as long as all machines are there.
  if (left.hosts.size() == world.hosts.size()) return world;
  left.num_processes = std::min(left.num_processes, world.num_processes);
  return left;
}

std::vector<std::string> LaunchCommand::mpirun_arguments(const World& world) const {
  std::vector<std::string> words = {"mpirun", "-n", std::to_string(world.num_processes)};
  // Processes share a machine's cores themselves, and a machine may have fewer than processes.
  for (const char* word : {"--oversubscribe", "--bind-to", "none", "--quiet"})
    words.emplace_back(word);
  // Time for last words, before mpirun kills processes that others have left; a second otherwise.
  words.insert(words.end(), {"--mca", "odls_base_sigkill_timeout", "2"});
  // A machine that has gone is noticed after 25 s, instead of some minutes.
  for (const auto& [name, value] :
       {std::pair("oob_tcp_keepalive_time", "10"), std::pair("oob_tcp_keepalive_intvl", "5"),
        std::pair("oob_tcp_keepalive_probes", "3")}) {
    words.insert(words.end(), {"--mca", name, value});
  }
  // mpirun passes on only its own variables to other machines.
  if (std::getenv("SHERD_ISA") != nullptr) words.insert(words.end(), {"-x", "SHERD_ISA"});
  if (::geteuid() == 0) words.emplace_back("--allow-run-as-root");
  if (!world.hosts.empty()) {
    std::string list;
    for (const Host& host : world.hosts) {
      list += fmt::format("{}{}:{}", list.empty() ? "" : ",", host.name, host.slots);
    }
    words.insert(words.end(), {"--host", list});
  }
  words.push_back(own_path());
  words.insert(words.end(), words_.begin(), words_.end());
  return words;
}

int LaunchCommand::run() const {
  if (sharding::mpi_library().empty()) {
    throw UsageError(
        "sherd launch needs MPI, and this program was built without it: build the cpu preset where "
        "libopenmpi-dev and openmpi-bin are installed, or use --ranks for threads of one process.");
  }
  World world = first_world();
  for (const int signal : {SIGTERM, SIGUSR1, SIGHUP}) install(signal, pass_on);
  install(SIGINT, note_interrupt);
  for (int start = 0;; ++start) {
    const int code = run_mpirun(mpirun_arguments(world));
    if (start >= num_restarts_ || asked_to_stop || !is_retryable(code)) return code;
    if (min_processes_ > 0) {
      world = without_lost_hosts(world);
      if (asked_to_stop) return code;
      if (world.num_processes < min_processes_) {
        throw PeerError("processes left: {}; --min-processes asks for {}.", world.num_processes,
                        min_processes_);
      }
    }
    const std::string where =
        min_processes_ > 0 ? fmt::format(" with -n {}", world.num_processes) : "";
    fmt::print(stderr, "sherd: the run ended with code {}; starting it again ({} of {}){}.\n", code,
               start + 1, num_restarts_, where);
  }
}

}  // namespace sherd::main
