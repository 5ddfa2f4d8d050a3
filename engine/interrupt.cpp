#include "engine/interrupt.h"

#include <signal.h>

#include <atomic>

#include "core/error.h"

namespace sherd::engine {
namespace {

std::atomic<bool> flag{false};
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void set_flag(int) {
  flag.store(true, std::memory_order_relaxed);
}

}  // namespace

void install_interrupt_handler() {
  flag = false;
  struct sigaction action {};
  action.sa_handler = set_flag;
  // RESETHAND gives the second Ctrl-C its default action; RESTART leaves reads and writes whole.
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigemptyset(&action.sa_mask);
  CHECK(::sigaction(SIGINT, &action, nullptr) == 0);
}

bool interrupted() {
  return flag.load(std::memory_order_relaxed);
}

}  // namespace sherd::engine
