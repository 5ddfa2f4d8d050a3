/// Starts a thread, or reports in one sentence that the machine refused it.
///
/// std::thread throws std::system_error, whose text names neither the thread nor a remedy. So all
/// threads of this program are started here.
/// Errors   TrainingError (exit code 5).
#pragma once

#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace sherd {

[[noreturn]] void throw_thread_refused(std::string_view purpose, const std::system_error& error);

/// `purpose` completes "refused a thread ...": "for rank 3", "that writes a checkpoint".
template <class Work>
std::thread start_thread(std::string_view purpose, Work&& work) {
  try {
    return std::thread(std::forward<Work>(work));
  } catch (const std::system_error& error) {
    throw_thread_refused(purpose, error);
  }
}

}  // namespace sherd
