#include "engine/launch/stop_signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "core/error.h"

namespace sherd::engine {
namespace {

std::atomic<StopRequest> request{StopRequest::kNone};
static_assert(std::atomic<StopRequest>::is_always_lock_free);
std::atomic<unsigned> deadline_seconds{0};
std::atomic<int> first_signal{0};   // of those that ask for a requeue
std::atomic<bool> is_saved{false};  // what the signal asked to save

// alarm(), write() and _exit() are among the few calls that a signal handler may make.
extern "C" void interrupt(int) {
  StopRequest none = StopRequest::kNone;
  request.compare_exchange_strong(none, StopRequest::kInterrupt, std::memory_order_relaxed);
}

extern "C" void requeue(int signal) {
  int none = 0;
  first_signal.compare_exchange_strong(none, signal, std::memory_order_relaxed);
  if (request.exchange(StopRequest::kRequeue, std::memory_order_relaxed) != StopRequest::kRequeue) {
    ::alarm(deadline_seconds.load(std::memory_order_relaxed));
  }
}

extern "C" void end_at_deadline(int) {
  constexpr char kUnsaved[] =
      "sherd: asked to end by a signal, and checkpoint.stop_deadline passed before a "
      "checkpoint was written; the next start continues from the one before.\n";
  constexpr char kSaved[] =
      "sherd: asked to end by a signal; the last step is saved, and checkpoint.stop_deadline "
      "passed before hooks and removals of older checkpoints had ended.\n";
  const bool saved = is_saved.load(std::memory_order_relaxed);
  [[maybe_unused]] const auto written = saved
                                            ? ::write(STDERR_FILENO, kSaved, sizeof kSaved - 1)
                                            : ::write(STDERR_FILENO, kUnsaved, sizeof kUnsaved - 1);
  ::_exit(75);
}

std::atomic<int> noted_signal{0};
std::atomic<bool> installed{false};
StopSpeaker early_speaker;

constexpr const char* name_of_signal(int signal) {
  return signal == SIGTERM ? "SIGTERM" : signal == SIGUSR1 ? "SIGUSR1" : "SIGHUP";
}
constexpr char kEarly[] = " before the run began; start it again.";

// In one piece, since other processes write to the same pipe.
void write_early(const char* name) {
  constexpr char kBegin[] = "sherd: ";
  char line[128];
  std::size_t size = 0;
  for (const char* text : {kBegin, name, kEarly, "\n"}) {
    while (*text != '\0') line[size++] = *text++;
  }
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line, size);
}

extern "C" void end_at_once(int signal, siginfo_t* from, void*) {
  const StopSpeaker& speaker = early_speaker;
  const bool is_for_all = speaker.parent != 0 && from->si_pid == speaker.parent;
  const bool is_said_elsewhere =
      is_for_all && (!speaker.speaks_for_all || (signal == SIGTERM && speaker.silent_at_sigterm));
  if (!is_said_elsewhere) write_early(name_of_signal(signal));
  ::_exit(75);
}

extern "C" void note(int signal) {
  noted_signal.store(signal, std::memory_order_relaxed);
}

void install(int signal, void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags | SA_RESTART;  // reads and writes aren't interrupted
  sigemptyset(&action.sa_mask);
  SHERD_CHECK(::sigaction(signal, &action, nullptr) == 0);
}

bool is_ignored(int signal) {
  struct sigaction action {};
  SHERD_CHECK(::sigaction(signal, nullptr, &action) == 0);
  return action.sa_handler == SIG_IGN;
}

}  // namespace

void end_at_stop_signals(const StopSpeaker& speaker) {
  early_speaker = speaker;
  struct sigaction action {};
  action.sa_sigaction = end_at_once;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigfillset(&action.sa_mask);
  for (const int signal : {SIGTERM, SIGUSR1, SIGHUP}) {
    if (signal == SIGHUP && is_ignored(signal)) continue;
    SHERD_CHECK(::sigaction(signal, &action, nullptr) == 0);
  }
}

void note_stop_signals() {
  for (const int signal : {SIGTERM, SIGUSR1, SIGHUP}) {
    if (signal == SIGHUP && is_ignored(signal)) continue;
    install(signal, note, 0);
  }
}

int take_noted_stop() {
  return noted_signal.exchange(0);
}

bool stop_handlers_installed() {
  return installed;
}

std::string early_stop_text(int signal) {
  return fmt::format("{}{}", name_of_signal(signal), kEarly);
}

void install_stop_handlers(std::optional<std::chrono::seconds> requeue_deadline) {
  ::alarm(0);
  is_saved = false;
  request = StopRequest::kNone;
  first_signal = 0;
  installed = true;
  // RESETHAND gives the second Ctrl-C its default action.
  install(SIGINT, interrupt, static_cast<int>(SA_RESETHAND));
  if (requeue_deadline) {
    SHERD_CHECK(requeue_deadline->count() >= 1, "a deadline of {} s", requeue_deadline->count());
    deadline_seconds = static_cast<unsigned>(requeue_deadline->count());
    install(SIGALRM, end_at_deadline, 0);
  }
  for (const int signal : {SIGTERM, SIGUSR1, SIGHUP}) {
    if (signal == SIGHUP && is_ignored(signal)) continue;
    install(signal, requeue_deadline ? requeue : SIG_DFL, 0);
  }
  if (const int signal = take_noted_stop(); signal != 0) ::raise(signal);
}

void outlive_lost_output() {
  for (const int signal : {SIGPIPE, SIGXFSZ}) install(signal, SIG_IGN, 0);
}

void note_saved() {
  is_saved.store(true, std::memory_order_relaxed);
}

std::chrono::seconds cancel_stop_deadline() {
  return std::chrono::seconds(::alarm(0));
}

void resume_stop_deadline(std::chrono::seconds left) {
  ::alarm(static_cast<unsigned>(std::max<std::int64_t>(left.count(), 1)));
}

StopRequest stop_request() {
  return request.load(std::memory_order_relaxed);
}

std::string asked_by(StopRequest stop) {
  if (stop == StopRequest::kInterrupt) return "Ctrl-C";
  if (stop == StopRequest::kTimeLimit) return "checkpoint.max_minutes is over";
  const char* name = ::sigabbrev_np(first_signal.load(std::memory_order_relaxed));
  return name ? fmt::format("SIG{}", name) : "a signal";
}

void throw_stopped(StopRequest stop, const std::string& where) {
  const std::string text = fmt::format("{} {}", asked_by(stop), where);
  if (stop != StopRequest::kInterrupt) throw Requeue("{}", text);
  throw Interrupted("{}", text);
}

void end_if_asked(const std::string& where) {
  if (const StopRequest asked = stop_request(); asked != StopRequest::kNone) {
    throw_stopped(asked, where);
  }
}

}  // namespace sherd::engine
