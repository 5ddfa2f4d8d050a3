#include "engine/main/commands.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>

#include "core/error.h"
#include "engine/main/own_program.h"
#include "engine/main/standard_streams.h"
#include "sharding/processes/mpi.h"

namespace sherd::main {
namespace {

constexpr int kRequeue = 75, kSignalled = 128;

std::atomic<int> stop_signal{0};  // the first that asked for an end
std::atomic<bool> interrupted{false}, save_asked{false};

extern "C" void ask_to_stop(int signal) {
  int none = 0;
  stop_signal.compare_exchange_strong(none, signal);
}
// Ctrl-C reaches mpirun from the terminal.
extern "C" void note_interrupt(int) {
  interrupted = true;
}

extern "C" void ask_to_save(int) {
  save_asked = true;
}

bool asked_to_stop() {
  return stop_signal != 0 || interrupted;
}

std::string name_of_signal(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

// An ignored signal stays ignored, as nohup requires.
void install(int signal, void (*handler)(int)) {
  struct sigaction before {};
  SHERD_CHECK(::sigaction(signal, nullptr, &before) == 0);
  if (before.sa_handler == SIG_IGN) return;
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  SHERD_CHECK(::sigaction(signal, &action, nullptr) == 0);
}

struct Pipe {
  Pipe() { SHERD_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, "pipe2: {}", std::strerror(errno)); }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  void close_end(std::size_t end) {
    if (ends[end] >= 0) ::close(ends[end]);
    ends[end] = -1;
  }
  std::array<int, 2> ends{};
};

// mpirun, and what it and its processes print on standard error, which is passed on line by line as
// it comes.
class Mpirun {
 public:
  explicit Mpirun(std::vector<std::string> words) {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    Pipe failure;
    sigset_t all, before;  // what comes between fork and exec is neither lost nor handled twice
    sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, &before);
    const pid_t launcher = ::getpid();
    process_ = ::fork();
    if (process_ == 0) become_mpirun(arguments.data(), launcher, failure, before);
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    SHERD_CHECK(process_ > 0, "fork: {}", std::strerror(errno));
    failure.close_end(1);
    errors_.close_end(1);
    int number = 0;
    if (::read(failure.ends[0], &number, sizeof number) == sizeof number) {
      ::waitpid(process_, nullptr, 0);
      throw UsageError("mpirun can't be started: {}. Install openmpi-bin.", std::strerror(number));
    }
    ::fcntl(errors_.ends[0], F_SETFL, O_NONBLOCK);
  }

  // Its exit code. A request to stop is repeated, since it may come before mpirun can pass it on,
  // and before the processes are there.
  int wait() {
    constexpr int kBetweenRequests = 100;  // milliseconds
    int status = 0;
    while (true) {
      pollfd file{errors_.ends[0], POLLIN, 0};
      ::poll(&file, 1, kBetweenRequests);
      pass_errors_on();
      const pid_t ended = ::waitpid(process_, &status, WNOHANG);
      SHERD_CHECK(ended >= 0 || errno == EINTR, "waitpid: {}", std::strerror(errno));
      if (ended == process_) break;
      if (stop_signal != 0) ::kill(process_, SIGUSR1);
      if (save_asked.exchange(false)) ::kill(process_, SIGUSR2);
    }
    pass_errors_on();
    return WIFEXITED(status) ? WEXITSTATUS(status) : kSignalled + WTERMSIG(status);
  }

  // Whether a process has printed a sentence of its own.
  bool has_spoken() const { return has_spoken_; }

 private:
  // mpirun passes SIGUSR1 and SIGUSR2 on to every process; after SIGTERM it would soon kill them.
  // Until it handles them, they must not end it. It ends when this process does, for any reason.
  [[noreturn]] void become_mpirun(char* const* arguments, pid_t launcher, const Pipe& failure,
                                  const sigset_t& mask) const {
    for (const int signal : {SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
    for (const int signal : {SIGTERM, SIGHUP, SIGINT}) {
      struct sigaction action {};
      ::sigaction(signal, nullptr, &action);
      if (action.sa_handler != SIG_IGN) ::signal(signal, SIG_DFL);
    }
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != launcher) ::_exit(kSignalled + SIGTERM);
    ::sigprocmask(SIG_SETMASK, &mask, nullptr);
    ::dup2(errors_.ends[1], STDERR_FILENO);
    ::execvp(arguments[0], arguments);
    const int number = errno;
    [[maybe_unused]] const auto written = ::write(failure.ends[1], &number, sizeof number);
    ::_exit(127);
  }

  void pass_errors_on() {
    std::array<char, 4096> bytes{};
    while (true) {
      const ssize_t got = ::read(errors_.ends[0], bytes.data(), bytes.size());
      if (got < 0 && errno == EINTR) continue;
      if (got == 0) errors_.close_end(0);  // mpirun may continue without it
      if (got <= 0) return;
      const std::string_view text(bytes.data(), static_cast<std::size_t>(got));
      std::fwrite(text.data(), 1, text.size(), stderr);
      std::fflush(stderr);
      note_sentences(text);
    }
  }

  void note_sentences(std::string_view text) {
    constexpr std::string_view kMark = "sherd: ";
    for (const char c : text) {
      if (c == '\n') {
        line_.clear();
      } else if (line_.size() < kMark.size()) {
        line_ += c;
        has_spoken_ = has_spoken_ || line_ == kMark;
      }
    }
  }

  Pipe errors_;
  pid_t process_ = 0;
  std::string line_;  // the beginning of the last one
  bool has_spoken_ = false;
};

// mpirun's exit code, or 75 if processes were ended by a request before they could handle it
// themselves. Prints a message if no process has printed one.
int run_mpirun(std::vector<std::string> words) {
  Mpirun mpirun(std::move(words));
  const int code = mpirun.wait();
  if (const int signal = stop_signal; signal != 0 && code != 0) {
    const bool by_request = code == kSignalled + SIGUSR1 || code == kSignalled + SIGTERM;
    if (!mpirun.has_spoken() && (by_request || code == kRequeue)) {
      print_error(
          fmt::format("sherd: {} before the run began; start it again.", name_of_signal(signal)));
    }
    return by_request ? kRequeue : code;
  }
  if (code > kSignalled && code < kSignalled + NSIG && !mpirun.has_spoken() && !interrupted) {
    print_error(fmt::format(
        "sherd: a process was ended by {} before the others could name it (mpirun: code {}).",
        name_of_signal(code - kSignalled), code));
  }
  return code;
}

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

// Uses mpirun itself, so it starts a process there in the same way as a run.
LaunchCommand::World LaunchCommand::without_lost_hosts(const World& world) const {
  World left;
  for (const Host& host : world.hosts) {
    std::vector<std::string> words = {"mpirun", "--timeout", "15", "--quiet"};
    if (::geteuid() == 0) words.emplace_back("--allow-run-as-root");
    words.insert(words.end(), {"--host", host.name, "-n", "1", "true"});
    const int code = Mpirun(std::move(words)).wait();
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
  for (const char* word : {"--oversubscribe", "--bind-to", "none", "--quiet"})
    words.emplace_back(word);
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
    if (const int signal = stop_signal; signal != 0) {
      print_error(
          fmt::format("sherd: {} before the run began; start it again.", name_of_signal(signal)));
      return kRequeue;
    }
    const int code = run_mpirun(mpirun_arguments(world));
    if (start >= num_restarts_ || asked_to_stop() || !is_retryable(code)) return code;
    if (min_processes_ > 0) {
      world = without_lost_hosts(world);
      if (asked_to_stop()) return stop_signal != 0 ? kRequeue : code;
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

void take_launch_signals() {
  for (const int signal : {SIGTERM, SIGUSR1, SIGHUP}) install(signal, ask_to_stop);
  install(SIGINT, note_interrupt);
  install(SIGUSR2, ask_to_save);
}

Command launch_command(CLI::App& program) {
  return make_command<LaunchCommand>(program, "launch",
                                     "Start a command in several processes, with mpirun");
}

}  // namespace sherd::main
