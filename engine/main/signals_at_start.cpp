#include "engine/main/signals_at_start.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <iterator>

namespace sherd::main {
namespace {

constexpr int kSignals[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGALRM, SIGUSR1, SIGUSR2};
bool ignored[std::size(kSignals)];

// As the kernel has it; the handler comes first. Sanitizers aren't ready for sigaction() yet.
struct KernelAction {
  void (*handler)(int);
  unsigned long others[16];
};

void note_signals() {
  constexpr std::size_t kBytesOfMask = 8;
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    KernelAction action{};
    const long failed = ::syscall(SYS_rt_sigaction, kSignals[i], nullptr, &action, kBytesOfMask);
    ignored[i] = failed == 0 && action.handler == SIG_IGN;
  }
}

// Runs before every constructor, also those of shared libraries (processor.cpp).
[[gnu::section(".preinit_array"), gnu::used]] void (*const kNoteSignals)() = note_signals;

}  // namespace

void restore_signals_at_start() {
  // Where it is ignored, the system forgets how a command has ended.
  ::signal(SIGCHLD, SIG_DFL);
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    struct sigaction action {};
    action.sa_handler = ignored[i] ? SIG_IGN : SIG_DFL;
    ::sigaction(kSignals[i], &action, nullptr);
  }
}

}  // namespace sherd::main
