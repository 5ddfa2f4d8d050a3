#include "engine/main/commands.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <sstream>

#include "core/error.h"
#include "engine/main/mpirun.h"
#include "engine/main/own_program.h"
#include "sharding/processes/mpi.h"

namespace sherd::main {
namespace {

// Whether a process has died or hung, which a restart may fix. Wrong recipes, full disks and
// non-finite losses would recur.
bool is_retryable(int code) {
  constexpr int kPeer = 4;           // CONTRIBUTING.md: exit codes
  constexpr int kLostMachine = 205;  // mpirun's, where its helper on another machine has gone
  for (const int signal : {SIGABRT, SIGBUS, SIGKILL, SIGSEGV}) {
    if (code == 128 + signal) return true;
  }
  return code == kPeer || code == kLostMachine;
}

// `sherd launch`: starts a command in several processes with mpirun.
class LaunchCommand {
 public:
  explicit LaunchCommand(CLI::App& command);
  /// Waits for mpirun and returns its exit code. SIGTERM, SIGUSR1 and SIGHUP reach every process as
  /// SIGUSR1, so that a run saves and ends (engine/launch/stop_signals.h); the code is then always
  /// 75. SIGUSR2 reaches them, too, and saves. mpirun ends when this process does, even by SIGKILL. A restart leaves out machines that
  /// don't answer, as far as --min-processes allows.
  /// Errors   UsageError: there is no mpirun, or no command.
  int run() const;

 private:
  struct Host {
    std::string name;
    int slots = 1;
  };
  struct World {
    int num_processes = 0;
    std::vector<Host> hosts;  ///< empty: this machine
  };
  World first_world() const;
  /// The machines of `world` that answer, with their processes.
  World without_lost_hosts(const World& world) const;
  std::vector<std::string> mpirun_arguments(const World& world) const;

  int num_processes_ = 0, num_servers_ = 0, num_restarts_ = 0, min_processes_ = 0;
  std::string hosts_;
  std::vector<std::string> words_;
};

LaunchCommand::LaunchCommand(CLI::App& command) {
  command.add_option("-n,--processes", num_processes_, "Number of processes")
      ->type_name("N")
      ->check(CLI::Range(1, 65536))
      ->required();
  command
      .add_option("--servers", num_servers_,
                  "The last N of them are parameter servers (parallelism.parameter_servers)")
      ->type_name("N")
      ->check(CLI::Range(1, 65535));
  command.add_option("--hosts", hosts_, "Machines and processes on each: node1:4,node2:4")
      ->type_name("LIST");
  command
      .add_option("--restarts", num_restarts_,
                  "Number of restarts from the newest checkpoint, when a process has died or "
                  "hung")
      ->type_name("N")
      ->check(CLI::Range(0, 1'000'000));
  command
      .add_option("--min-processes", min_processes_,
                  "With --hosts and --restarts: restart without machines that don't respond, "
                  "with at least N processes")
      ->type_name("N")
      ->check(CLI::Range(1, 65536));
  command.add_option("command", words_, "After --: the command, such as train RECIPE")
      ->type_name("COMMAND")
      ->required();
}

LaunchCommand::World LaunchCommand::first_world() const {
  const auto says_servers = [](const std::string& word) {
    return word.find("parallelism.parameter_servers=") != std::string::npos;
  };
  if (num_servers_ > 0 && std::ranges::any_of(words_, says_servers)) {
    throw UsageError("--servers sets parallelism.parameter_servers; leave out the --set.");
  }
  if (num_servers_ >= num_processes_) {
    throw UsageError("--servers is {}, of {} processes (-n); at least one must be left to compute.",
                     num_servers_, num_processes_);
  }
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

// Uses mpirun itself, so it starts a process there in the same way as a run. It is asked to print
// less in the words of Open MPI 4 and of Open MPI 5.
LaunchCommand::World LaunchCommand::without_lost_hosts(const World& world) const {
  World left;
  for (const Host& host : world.hosts) {
    std::vector<std::string> words = {"env",
                                      "PRTE_MCA_prte_execute_quiet=1",
                                      "mpirun",
                                      "--timeout",
                                      "15",
                                      "--mca",
                                      "orte_execute_quiet",
                                      "1"};
    if (::geteuid() == 0) words.emplace_back("--allow-run-as-root");
    words.insert(words.end(), {"--host", host.name, "-n", "1", "true"});
    const int code = exit_code_of_mpirun(std::move(words));
    if (asked_to_stop()) return world;
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
  for (const char* word : {"--oversubscribe", "--bind-to", "none"}) words.emplace_back(word);
  // Time for final messages, before mpirun kills processes that others have left; otherwise a
  // second.
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
  if (num_servers_ > 0) {
    words.insert(words.end(),
                 {"--set", fmt::format("parallelism.parameter_servers={}", num_servers_)});
  }
  return words;
}

int LaunchCommand::run() const {
  if (sharding::mpi_library().empty()) {
    throw UsageError(
        "sherd launch needs MPI, and this program was built without it: build the cpu preset where "
        "libopenmpi-dev and openmpi-bin are installed, or use --ranks for threads of one process.");
  }
  World world = first_world();
  for (int start = 0;; ++start) {
    if (signal_to_stop() != 0) {
      print_not_begun();
      return kRequeue;
    }
    const int code = run_mpirun(mpirun_arguments(world));
    if (start >= num_restarts_ || asked_to_stop() || !is_retryable(code)) return code;
    if (min_processes_ > 0) {
      world = without_lost_hosts(world);
      if (asked_to_stop()) return signal_to_stop() != 0 ? kRequeue : code;
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

}  // namespace

Command launch_command(CLI::App& program) {
  return make_command<LaunchCommand>(program, "launch",
                                     "Start a command in several processes, with mpirun");
}

}  // namespace sherd::main
