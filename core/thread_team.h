/// The compute threads of one rank: `num_threads` threads, the caller among them, that share the
/// tasks of one loop at a time.
///
/// Any thread may run any task, so a task's result must not depend on the thread. Kernels divide
/// their work into tasks by shape alone, never by the number of threads. So results are
/// bit-identical for every thread count.
///
/// We use our own team instead of OpenMP. The thread sanitizer can follow it, ranks can share cores
/// without libgomp's spinning, and one team belongs to exactly one rank.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace sherd {

class LoopLog;

class ThreadTeam {
 public:
  /// `may_spin`: helpers look for the next loop for a few microseconds before they sleep. Use it if
  /// every thread has its own core, not if ranks share cores.
  /// Errors   TrainingError if the machine refuses a thread.
  explicit ThreadTeam(int num_threads, bool may_spin = false);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int num_threads() const { return static_cast<int>(helpers_.size()) + 1; }

  /// Runs `task(i, thread)` for every 0 <= i < num_tasks, each once, with 0 <= thread <
  /// num_threads() (for scratch that belongs to a thread). Returns when all are done. Tasks must
  /// not throw.
  template <class Task>
  void parallel_for(std::int64_t num_tasks, Task&& task) {
    if ((helpers_.empty() || num_tasks <= 1) && !log_) {
      for (std::int64_t i = 0; i < num_tasks; ++i) task(i, 0);
      return;
    }
    using Function = std::remove_reference_t<Task>;
    run(num_tasks, const_cast<void*>(static_cast<const void*>(&task)),
        [](void* context, std::int64_t i, int thread) {
          (*static_cast<Function*>(context))(i, thread);
        });
  }

  /// The same for tasks that need results of earlier tasks. Task i begins when all tasks below
  /// `needs(i)`, which is at most i, are done. Tasks are handed out in order, so a task that is
  /// waited for is running or done. One such loop replaces a loop per stage of the work, and saves
  /// the barriers between those.
  template <class Needs, class Task>
  void parallel_for_after(std::int64_t num_tasks, const Needs& needs, const Task& task) {
    parallel_for(num_tasks, [&](std::int64_t i, int thread) {
      wait_for_tasks_below(needs(i), thread);
      if (log_) log_begin(i, needs(i));
      task(i, thread);
    });
  }

  /// Later loops are logged there; null: no longer. `one_by_one`: the caller runs all tasks, so that
  /// each takes as long as without others, on a machine that needn't have as many cores.
  void log_to(LoopLog* log, bool one_by_one = false) {
    log_ = log;
    one_by_one_ = one_by_one;
  }

 private:
  using Invoke = void (*)(void* context, std::int64_t task, int thread);
  void run(std::int64_t num_tasks, void* context, Invoke invoke);
  void run_on_all(std::int64_t num_tasks, void* context, Invoke invoke);
  void run_logged(std::int64_t num_tasks, void* context, Invoke invoke);
  void log_begin(std::int64_t task, std::int64_t needs);
  void work(int thread);
  void help(int thread);
  void wait_for_tasks_below(std::int64_t end, int thread) const;
  void stop();

  // One loop at a time: these are written by the caller before `loop_` is advanced, and read by
  // helpers after they saw it advance.
  std::int64_t num_tasks_ = 0;
  void* context_ = nullptr;
  Invoke invoke_ = nullptr;
  std::atomic<std::int64_t> next_task_{0};
  // Per thread: now and later in this loop, it has no unfinished task below this number.
  struct alignas(64) Place {
    std::atomic<std::int64_t> task;
  };
  std::unique_ptr<Place[]> places_;
  alignas(64) std::atomic<std::uint32_t> loop_{0};
  alignas(64) std::atomic<std::int32_t> busy_{0};
  std::atomic<bool> stop_{false};
  int spins_ = 0;
  std::vector<std::thread> helpers_;
  LoopLog* log_ = nullptr;
  bool one_by_one_ = false;
};

}  // namespace sherd
