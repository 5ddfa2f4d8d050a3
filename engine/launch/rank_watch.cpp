#include "engine/launch/rank_watch.h"

#include "core/error.h"
#include "core/thread.h"

namespace sherd::engine {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{100};

bool is_asked_for(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Requeue&) {
    return true;
  } catch (const Interrupted&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

RankWatch::RankWatch(Options options) : options_(std::move(options)) {
  if (!options_.on_stuck && !options_.stop_asked) return;
  thread_ = start_thread("that looks after ranks", [this] { run(); });
}

RankWatch::~RankWatch() {
  {
    std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void RankWatch::began(int rank, const sharding::FlightRecorder& recorder) {
  std::lock_guard lock(mutex_);
  ranks_[rank] = &recorder;
}

void RankWatch::ended(int rank) {
  std::lock_guard lock(mutex_);
  ranks_.erase(rank);
}

void RankWatch::failed(const std::exception_ptr& error) {
  std::lock_guard lock(mutex_);
  if (failed_ || ends_as_asked_) return;
  // After a requested end, failures of ranks that miss this one are only consequences.
  if (is_asked_for(error)) {
    ends_as_asked_ = true;
    return;
  }
  failure_ = error;
  failed_ = Clock::now();
}

void RankWatch::run() {
  bool calls_told = !options_.stop_asked || !options_.on_calls, stuck_told = !options_.on_stuck;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kBetweenLooks, [this] { return over_; })) {
    const auto now = Clock::now();
    if (!stop_seen_ && options_.stop_asked && options_.stop_asked()) stop_seen_ = now;
    if (!calls_told && stop_seen_ && now - *stop_seen_ >= kForAStop) {
      calls_told = true;
      tell_calls(lock);
    }
    if (!stuck_told && failed_ && !ranks_.empty() && now - *failed_ >= options_.for_others) {
      stuck_told = true;
      tell_stuck(lock);
    }
  }
}

// Texts are made while no rank can end, and reported while any may.
void RankWatch::tell_calls(std::unique_lock<std::mutex>& lock) {
  std::map<int, std::string> texts;
  for (const auto& [rank, recorder] : ranks_) texts[rank] = recorder->text();
  lock.unlock();
  for (const auto& [rank, text] : texts) options_.on_calls(rank, text);
  lock.lock();
}

void RankWatch::tell_stuck(std::unique_lock<std::mutex>& lock) {
  std::vector<int> ranks;
  for (const auto& [rank, recorder] : ranks_) ranks.push_back(rank);
  lock.unlock();
  options_.on_stuck(ranks, failure_);
  lock.lock();
}

}  // namespace sherd::engine
