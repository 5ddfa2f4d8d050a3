#include "engine/launch/save_signal.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "core/error.h"

namespace sherd::engine {
namespace {

std::atomic<bool> asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);
std::atomic<pid_t> ignored_sender{0};

extern "C" void note_save(int, siginfo_t* from, void*) {
  const pid_t sender = ignored_sender.load(std::memory_order_relaxed);
  if (sender == 0 || from->si_pid != sender) asked.store(true, std::memory_order_relaxed);
}

}  // namespace

void install_save_signal() {
  asked = false;
  const char* process = std::getenv("OMPI_COMM_WORLD_RANK");
  ignored_sender = process && std::atoi(process) > 0 ? ::getppid() : 0;
  struct sigaction action {};
  action.sa_sigaction = note_save;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&action.sa_mask);
  SHERD_CHECK(::sigaction(SIGUSR2, &action, nullptr) == 0);
}

void ignore_save_signal() {
  ::signal(SIGUSR2, SIG_IGN);
}

bool take_save_signal() {
  return asked.load(std::memory_order_relaxed) && asked.exchange(false);
}

}  // namespace sherd::engine
