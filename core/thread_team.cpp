#include "core/thread_team.h"

#include <chrono>
#include <limits>

#include "core/error.h"
#include "core/loop_log.h"
#include "core/thread.h"

namespace sherd {
namespace {

constexpr std::int64_t kNoTask = std::numeric_limits<std::int64_t>::max();
// Threads finish their last tasks about this far apart, and waking one takes fifty microseconds.
constexpr int kSpins = 300;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Polls a condition for at most this many microseconds; a pause takes 40 cycles on one processor,
// 140 on another.
template <class IsSo>
bool spin_until(int spins, const IsSo& is_so) {
  constexpr int kLooks = 50;
  if (is_so() || spins == 0) return is_so();
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(spins);
  do {
    for (int look = 0; look < kLooks; ++look) {
      if (is_so()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

ThreadTeam::ThreadTeam(int num_threads, bool may_spin) : spins_(may_spin ? kSpins : 0) {
  SHERD_CHECK(num_threads >= 1, "a team of {} threads", num_threads);
  places_ = std::make_unique<Place[]>(static_cast<std::size_t>(num_threads));
  for (int thread = 0; thread < num_threads; ++thread) places_[thread].task = kNoTask;
  helpers_.reserve(static_cast<std::size_t>(num_threads - 1));
  try {
    for (int thread = 1; thread < num_threads; ++thread) {
      helpers_.push_back(
          start_thread(fmt::format("for computing ({} of {})", thread + 1, num_threads),
                       [this, thread] { help(thread); }));
    }
  } catch (...) {
    stop();  // those that have started
    throw;
  }
}

ThreadTeam::~ThreadTeam() {
  stop();
}

void ThreadTeam::stop() {
  stop_.store(true);
  loop_.fetch_add(1);
  loop_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

// A thread announces its position before it takes a task, so no other thread can briefly believe
// that the task is done. A thread that has taken a later task has seen this one taken, and so the
// announcement. The thread announces again with the task itself. Otherwise two threads that looked
// at the same moment would wait for each other.
void ThreadTeam::work(int thread) {
  std::atomic<std::int64_t>& place = places_[thread].task;
  for (;;) {
    place.store(next_task_.load(std::memory_order_relaxed), std::memory_order_release);
    const std::int64_t i = next_task_.fetch_add(1, std::memory_order_acq_rel);
    if (i >= num_tasks_) break;
    place.store(i, std::memory_order_release);
    invoke_(context_, i, thread);
  }
  place.store(kNoTask, std::memory_order_release);
}

void ThreadTeam::wait_for_tasks_below(std::int64_t end, int thread) const {
  for (int other = 0; other < num_threads(); ++other) {
    if (other == thread) continue;
    const auto is_beyond = [&] {
      return places_[other].task.load(std::memory_order_acquire) >= end;
    };
    spin_until(spins_, is_beyond);
    for (int looks = 0; !is_beyond(); ++looks) {
      if (looks < 100) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
  }
}

void ThreadTeam::help(int thread) {
  std::uint32_t seen = 0;
  for (;;) {
    spin_until(spins_, [&] { return loop_.load(std::memory_order_acquire) != seen; });
    loop_.wait(seen, std::memory_order_acquire);
    if (stop_.load()) return;
    ++seen;  // the caller waits for us before it starts another loop, so none is missed
    work(thread);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
  }
}

void ThreadTeam::run(std::int64_t num_tasks, void* context, Invoke invoke) {
  log_ ? run_logged(num_tasks, context, invoke) : run_on_all(num_tasks, context, invoke);
}

void ThreadTeam::run_logged(std::int64_t num_tasks, void* context, Invoke invoke) {
  using Clock = std::chrono::steady_clock;
  struct Logged {
    void* context;
    Invoke invoke;
    std::vector<LoopLog::Task>& tasks;
  };
  LoopLog::Loop& loop = log_->loops_.emplace_back();
  loop.name = log_->name_;
  loop.tasks.resize(static_cast<std::size_t>(num_tasks));
  Logged logged{context, invoke, loop.tasks};
  const Invoke timed = [](void* self, std::int64_t i, int thread) {
    const Logged& of = *static_cast<Logged*>(self);
    LoopLog::Task& task = of.tasks[static_cast<std::size_t>(i)];
    task.thread = thread;
    task.taken = task.begin = Clock::now();
    of.invoke(of.context, i, thread);
    task.end = Clock::now();
  };
  loop.begin = Clock::now();
  if (helpers_.empty() || num_tasks <= 1 || one_by_one_) {
    for (std::int64_t i = 0; i < num_tasks; ++i) timed(&logged, i, 0);
  } else {
    run_on_all(num_tasks, &logged, timed);
  }
  loop.end = Clock::now();
}

void ThreadTeam::log_begin(std::int64_t task, std::int64_t needs) {
  LoopLog::Task& of = log_->loops_.back().tasks[static_cast<std::size_t>(task)];
  of.begin = std::chrono::steady_clock::now();
  of.needs = needs;
}

void ThreadTeam::run_on_all(std::int64_t num_tasks, void* context, Invoke invoke) {
  num_tasks_ = num_tasks;
  context_ = context;
  invoke_ = invoke;
  next_task_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<std::int32_t>(helpers_.size()), std::memory_order_relaxed);
  loop_.fetch_add(1, std::memory_order_release);
  loop_.notify_all();
  work(0);
  spin_until(spins_, [&] { return busy_.load(std::memory_order_acquire) == 0; });
  for (std::int32_t busy = busy_.load(std::memory_order_acquire); busy != 0;
       busy = busy_.load(std::memory_order_acquire)) {
    busy_.wait(busy, std::memory_order_acquire);
  }
}

}  // namespace sherd
