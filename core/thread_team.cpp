#include "core/thread_team.h"

#include "core/error.h"
#include "core/thread.h"

namespace sherd {
namespace {

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadTeam::ThreadTeam(int num_threads, bool may_spin) : spins_(may_spin ? 4000 : 0) {
  CHECK(num_threads >= 1, "a team of {} threads", num_threads);
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

void ThreadTeam::work(int thread) {
  for (;;) {
    const std::int64_t i = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (i >= num_tasks_) return;
    invoke_(context_, i, thread);
  }
}

void ThreadTeam::help(int thread) {
  std::uint32_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < spins_ && loop_.load(std::memory_order_acquire) == seen; ++spin) {
      pause();
    }
    loop_.wait(seen, std::memory_order_acquire);
    if (stop_.load()) return;
    ++seen;  // the caller waits for us before it starts another loop, so none is missed
    work(thread);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
  }
}

void ThreadTeam::run(std::int64_t num_tasks, void* context, Invoke invoke) {
  num_tasks_ = num_tasks;
  context_ = context;
  invoke_ = invoke;
  next_task_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<std::int32_t>(helpers_.size()), std::memory_order_relaxed);
  loop_.fetch_add(1, std::memory_order_release);
  loop_.notify_all();
  work(0);
  for (int spin = 0; spin < spins_ && busy_.load(std::memory_order_acquire) != 0; ++spin) pause();
  for (std::int32_t busy = busy_.load(std::memory_order_acquire); busy != 0;
       busy = busy_.load(std::memory_order_acquire)) {
    busy_.wait(busy, std::memory_order_acquire);
  }
}

}  // namespace sherd
