// A library that installs handlers when it is loaded, as libpsm2 does
// (engine/main/signals_at_start.h).
#include <unistd.h>

#include <csignal>
#include <initializer_list>

namespace {

void end(int) {
  ::_exit(99);
}

[[gnu::constructor]] void install() {
  for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGUSR1}) ::signal(signal, end);
}

}  // namespace
