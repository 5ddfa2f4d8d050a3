#include "engine/main/mpirun.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "core/error.h"
#include "engine/launch/launcher_messages.h"
#include "engine/main/standard_streams.h"

namespace sherd::main {
namespace {

constexpr int kSignalled = 128;

std::atomic<int> stop_signal{0};  // the first that asked for an end
std::atomic<bool> interrupted{false}, interrupted_alone{false}, save_asked{false};

extern "C" void ask_to_stop(int signal) {
  int none = 0;
  stop_signal.compare_exchange_strong(none, signal);
}
// Ctrl-C reaches mpirun from the terminal; what a process sends comes here alone.
extern "C" void note_interrupt(int, siginfo_t* from, void*) {
  interrupted = true;
  if (from->si_code <= 0) interrupted_alone = true;
}

extern "C" void ask_to_save(int) {
  save_asked = true;
}

std::string name_of_signal(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

// An ignored signal stays ignored, as nohup requires.
void install(int signal, struct sigaction action) {
  struct sigaction before {};
  SHERD_CHECK(::sigaction(signal, nullptr, &before) == 0);
  if (before.sa_handler == SIG_IGN) return;
  action.sa_flags |= SA_RESTART;
  sigemptyset(&action.sa_mask);
  SHERD_CHECK(::sigaction(signal, &action, nullptr) == 0);
}
void install(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  install(signal, action);
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

  // Its exit code.
  int wait() {
    constexpr int kBetweenLooks = 100;  // milliseconds
    int status = 0;
    while (true) {
      pollfd file{errors_.ends[0], POLLIN, 0};
      ::poll(&file, 1, kBetweenLooks);
      pass_errors_on();
      const pid_t ended = ::waitpid(process_, &status, WNOHANG);
      SHERD_CHECK(ended >= 0 || errno == EINTR, "waitpid: {}", std::strerror(errno));
      if (ended == process_) break;
      ask_to_stop_again();
      if (save_asked.exchange(false)) ::kill(process_, SIGUSR2);
      if (interrupted_alone.exchange(false)) ::kill(process_, SIGINT);
    }
    pass_errors_on();
    print(messages_.rest());
    return WIFEXITED(status) ? WEXITSTATUS(status) : kSignalled + WTERMSIG(status);
  }

  // Whether a process has printed a sentence of its own.
  bool has_spoken() const { return has_spoken_; }
  // "process 1 on node7", or "a process": which one ended first.
  std::string ended() const {
    return messages_.ended().empty() ? std::string("a process") : messages_.ended();
  }

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

  // A request to stop is repeated, since it may come before mpirun can pass it on, and before the
  // processes are there. Ever more rarely, by the clock: mpirun prints a line each time, so output
  // doesn't mean that it is time.
  void ask_to_stop_again() {
    const auto now = std::chrono::steady_clock::now();
    if (stop_signal == 0 || now < next_request_) return;
    ::kill(process_, SIGUSR1);
    next_request_ = now + between_requests_;
    between_requests_ = std::min<std::chrono::milliseconds>(2 * between_requests_, kMostBetween);
  }

  void pass_errors_on() {
    std::array<char, 4096> bytes{};
    while (true) {
      const ssize_t got = ::read(errors_.ends[0], bytes.data(), bytes.size());
      if (got < 0 && errno == EINTR) continue;
      if (got == 0) errors_.close_end(0);  // mpirun may continue without it
      if (got <= 0) return;
      print(messages_.pass({bytes.data(), static_cast<std::size_t>(got)}));
    }
  }

  void print(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
    note_sentences(text);
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

  static constexpr std::chrono::milliseconds kMostBetween{1000};
  std::chrono::steady_clock::time_point next_request_{};
  std::chrono::milliseconds between_requests_{100};
  Pipe errors_;
  engine::MpirunMessages messages_;
  pid_t process_ = 0;
  std::string line_;  // the beginning of the last one
  bool has_spoken_ = false;
};

}  // namespace

void take_launch_signals() {
  for (const int signal : {SIGTERM, SIGUSR1, SIGHUP}) install(signal, ask_to_stop);
  struct sigaction interrupt {};
  interrupt.sa_sigaction = note_interrupt;
  interrupt.sa_flags = SA_SIGINFO;
  install(SIGINT, interrupt);
  install(SIGUSR2, ask_to_save);
}

int signal_to_stop() {
  return stop_signal;
}

bool asked_to_stop() {
  return stop_signal != 0 || interrupted;
}

void print_not_begun() {
  print_error(
      fmt::format("sherd: {} before the run began; start it again.", name_of_signal(stop_signal)));
}

int exit_code_of_mpirun(std::vector<std::string> words) {
  return Mpirun(std::move(words)).wait();
}

int run_mpirun(std::vector<std::string> words) {
  Mpirun mpirun(std::move(words));
  const int code = mpirun.wait();
  if (stop_signal != 0 && code != 0) {
    const bool by_request = code == kSignalled + SIGUSR1 || code == kSignalled + SIGTERM;
    if (!mpirun.has_spoken() && (by_request || code == kRequeue)) {
      print_not_begun();
    }
    return by_request ? kRequeue : code;
  }
  if (code > kSignalled && code < kSignalled + NSIG && !mpirun.has_spoken() && !interrupted) {
    print_error(
        fmt::format("sherd: {} was ended by {} before the others could name it (mpirun: code {}).",
                    mpirun.ended(), name_of_signal(code - kSignalled), code));
  }
  return code;
}

}  // namespace sherd::main
