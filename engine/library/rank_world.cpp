#include "engine/library/rank_world.h"

#include <signal.h>

#include "core/thread.h"

namespace sherd::library {
namespace {

// Threads inherit what is blocked. Signals that report a fault of the thread itself stay open.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    ::sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) {
      ::sigdelset(&all, fault);
    }
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

RankWorld::RankWorld(engine::LaunchOptions launch, engine::TrainerOptions options)
    : launch_(std::move(launch)), options_(std::move(options)) {
  const BlockedSignals blocked;
  thread_ = start_thread("for the ranks of a trainer", [this] { run_all(); });
}

RankWorld::~RankWorld() {
  {
    const std::lock_guard lock(mutex_);
    closes_ = true;
  }
  asked_.notify_all();
  thread_.join();
}

void RankWorld::run_all() {
  std::exception_ptr error;
  try {
    engine::run_ranks(launch_, [this](sharding::Rank& rank) { serve(rank); });
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  error_ = error;
  has_ended_ = true;
  answered_.notify_all();
}

void RankWorld::serve(sharding::Rank& rank) {
  try {
    engine::Trainer trainer(options_, rank);
    rank.guard([&] {
      Work work;
      for (std::int64_t number = 1; take(number, work); ++number) {
        work(trainer, rank);
        const std::lock_guard lock(mutex_);
        if (++num_done_ == world_size()) answered_.notify_all();
      }
    });
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      has_failed_ = true;  // ranks that wait for work don't learn of it from a peer
    }
    asked_.notify_all();
    throw;
  }
}

bool RankWorld::take(std::int64_t number, Work& work) {
  std::unique_lock lock(mutex_);
  asked_.wait(lock, [&] { return number_ >= number || closes_ || has_failed_; });
  if (number_ < number) return false;
  work = work_;
  return true;
}

void RankWorld::run(const Work& work) {
  std::unique_lock lock(mutex_);
  if (!has_ended_) {
    work_ = work;
    num_done_ = 0;
    ++number_;
    asked_.notify_all();
    answered_.wait(lock, [&] { return num_done_ == world_size() || has_ended_; });
  }
  if (has_ended_) std::rethrow_exception(error_);
}

}  // namespace sherd::library
