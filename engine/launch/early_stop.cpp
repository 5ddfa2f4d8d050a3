#include "engine/launch/early_stop.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <numeric>

#include "core/thread.h"
#include "engine/launch/save_signal.h"
#include "engine/launch/stop_signals.h"

namespace sherd::engine {
namespace {

constexpr int kRequeue = 75, kPeer = 4;
constexpr std::chrono::milliseconds kBetweenLooks{100};
constexpr const char* kNotice = "stop before the run";

std::vector<int> others(const sharding::ControlLinks& links) {
  std::vector<int> all(static_cast<std::size_t>(links.num_processes()));
  std::iota(all.begin(), all.end(), 0);
  std::erase(all, links.process());
  return all;
}

}  // namespace

// mpirun's processes, and those of a world that the environment names
// (sharding/processes/environment.h).
void begin_early_stop() {
  ignore_save_signal();
  StopSpeaker speaker;
  if (const char* number = std::getenv("OMPI_COMM_WORLD_RANK")) {
    speaker = {std::atoi(number) == 0, ::getppid(), true};
  } else if (const char* rank = std::getenv("RANK"); rank && std::getenv("WORLD_SIZE")) {
    speaker = {std::atoi(rank) == 0, ::getppid(), false};
  }
  end_at_stop_signals(speaker);
}

void note_early_stops() {
  note_stop_signals();
}

EarlyStop::Options EarlyStop::of_this_process(Leave leave) {
  note_early_stops();
  const bool by_mpirun = std::getenv("OMPI_COMM_WORLD_RANK") != nullptr;
  return {std::move(leave), [by_mpirun] { return by_mpirun ? static_cast<int>(::getppid()) : 0; },
          take_noted_stop};
}

EarlyStop::EarlyStop(sharding::ControlLinks& links, Options options)
    : links_(links), options_(std::move(options)), parent_(options_.parent()) {
  thread_ = start_thread("that looks for requests to stop", [this] { run(); });
}

EarlyStop::~EarlyStop() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void EarlyStop::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kBetweenLooks, [this] { return over_; })) {
    lock.unlock();
    if (look()) return;
    lock.lock();
  }
}

// Whether there is nothing more to look for.
bool EarlyStop::look() {
  if (parent_ != 0 && options_.parent() != parent_) {
    parent_ = 0;
    ::raise(SIGTERM);
  }
  if (const int signal = options_.noted(); signal != 0) {
    if (links_.aborted()) {  // mpirun's SIGTERM, after another process has failed
      options_.leave({kPeer, links_.reason(), true});
      return true;
    }
    const std::string text = early_stop_text(signal);
    links_.tell(others(links_), kNotice, text);
    links_.abort(text);
    options_.leave({kRequeue, text, false});
    return true;
  }
  const auto told = links_.told(kNotice, std::chrono::milliseconds(0));
  if (!told) return false;
  // A run that has begun meanwhile ends by the abort.
  if (!stop_handlers_installed()) options_.leave({kPeer, *told, true});
  return true;
}

}  // namespace sherd::engine
