/// What a process has only once, and a library shouldn't change: signals, environment, folder, locale.
#pragma once

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <clocale>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

namespace sherd::testing {

struct ProcessState {
  std::vector<void (*)(int)> handlers;  ///< of all signals
  std::vector<bool> blocked;            ///< in the calling thread
  std::vector<std::string> environment;
  std::string folder, locale;
  mode_t file_mask = 0;
  unsigned alarm = 0;  ///< seconds to the next one
  bool operator==(const ProcessState&) const = default;
};

inline ProcessState process_state() {
  ProcessState state;
  sigset_t mask;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  for (int signal = 1; signal < SIGRTMAX; ++signal) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    state.handlers.push_back(action.sa_handler);
    state.blocked.push_back(sigismember(&mask, signal) == 1);
  }
  for (char** variable = environ; *variable != nullptr; ++variable) {
    state.environment.emplace_back(*variable);
  }
  state.folder = std::filesystem::current_path().string();
  state.locale = std::setlocale(LC_ALL, nullptr);
  state.file_mask = ::umask(0);
  ::umask(state.file_mask);
  state.alarm = ::alarm(0);
  ::alarm(state.alarm);
  return state;
}

}  // namespace sherd::testing
