#include "core/thread.h"

#include "core/error.h"

namespace sherd {

void throw_thread_refused(std::string_view purpose, const std::system_error& error) {
  throw TrainingError(
      "this machine refused a thread {}: {}. Use fewer ranks or a smaller run.num_threads, or "
      "raise "
      "the limits on processes and memory (ulimit -u, ulimit -v, the container's).",
      purpose, error.code().message());
}

}  // namespace sherd
