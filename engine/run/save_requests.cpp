#include "engine/run/save_requests.h"

#include "engine/launch/save_signal.h"

namespace sherd::engine {

SaveRequests::SaveRequests(const OutputFolder& output, bool looks, bool listens,
                           std::function<void(const std::string&)> say)
    : output_(output), looks_(looks), listens_(listens), say_(std::move(say)) {}

bool SaveRequests::take() {
  source_ = "SIGUSR2";
  const bool signalled = listens_ && take_save_signal();
  return (looks_ && take_file()) || signalled;
}

// Without its removal, every step would save.
bool SaveRequests::take_file() {
  const std::string path = output_.file(kSaveFile);
  try {
    if (!checkpoint::exists(output_.disk(), path)) return false;
    if (output_.lock()) output_.lock()->check();
    checkpoint::remove_file(output_.disk(), path);
  } catch (const checkpoint::DiskError& error) {
    looks_ = false;
    say_(fmt::format("warning: {} can't be removed, and is ignored from now on: {}", path,
                     error.what()));
    return false;
  }
  source_ = path;
  return true;
}

}  // namespace sherd::engine
