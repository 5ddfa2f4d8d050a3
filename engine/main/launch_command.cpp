#include "engine/main/launch_command.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

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
  constexpr int kPeer = 4;  // CONTRIBUTING.md: exit codes
  for (const int signal : {SIGABRT, SIGBUS, SIGKILL, SIGSEGV}) {
    if (code == 128 + signal) return true;
  }
  return code == kPeer;
}

}  // namespace

LaunchCommand::LaunchCommand(CLI::App& app)
    : command_(app.add_subcommand("launch", "Start a command in several processes, with mpirun")) {
  command_->add_option("-n,--processes", num_processes_, "How many processes")
      ->type_name("N")
      ->check(CLI::Range(1, 65536))
      ->required();
  command_->add_option("--hosts", hosts_, "Machines and processes on each: node1:4,node2:4")
      ->type_name("LIST");
  command_
      ->add_option("--restarts", num_restarts_,
                   "Start again so many times, from the newest checkpoint, when a process has "
                   "died or hung")
      ->type_name("N")
      ->check(CLI::Range(0, 1'000'000));
  command_->add_option("command", words_, "After --: the command, such as train RECIPE")
      ->type_name("COMMAND")
      ->required();
}

std::vector<std::string> LaunchCommand::mpirun_arguments() const {
  std::vector<std::string> words = {"mpirun", "-n", std::to_string(num_processes_)};
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
  if (!hosts_.empty()) words.insert(words.end(), {"--host", hosts_});
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
  for (const int signal : {SIGTERM, SIGUSR1, SIGHUP}) install(signal, pass_on);
  install(SIGINT, note_interrupt);
  for (int start = 0;; ++start) {
    const int code = run_mpirun(mpirun_arguments());
    if (start >= num_restarts_ || asked_to_stop || !is_retryable(code)) return code;
    fmt::print(stderr, "sherd: the run ended with code {}; starting it again ({} of {}).\n", code,
               start + 1, num_restarts_);
  }
}

}  // namespace sherd::main
