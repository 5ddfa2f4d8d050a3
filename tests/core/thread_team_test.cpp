#include "core/thread_team.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "core/error.h"
#include "core/loop_log.h"
#include "tests/support/runs/few_threads.h"

namespace sherd {
namespace {

// Counts without atomics: a task that ran twice at once would be a race for the thread sanitizer.
void expect_each_task_once(ThreadTeam& team, std::int64_t num_tasks) {
  std::vector<int> runs(static_cast<std::size_t>(num_tasks), 0);
  std::vector<std::int64_t> per_thread(static_cast<std::size_t>(team.num_threads()), 0);
  team.parallel_for(num_tasks, [&](std::int64_t i, int thread) {
    ++runs[static_cast<std::size_t>(i)];
    ++per_thread.at(static_cast<std::size_t>(thread));
  });
  for (std::int64_t i = 0; i < num_tasks; ++i) {
    ASSERT_EQ(runs[static_cast<std::size_t>(i)], 1) << "task " << i << " of " << num_tasks;
  }
  ASSERT_EQ(std::accumulate(per_thread.begin(), per_thread.end(), std::int64_t{0}), num_tasks);
}

TEST(ThreadTeam, RunsEachTaskOnceForManySizes) {
  for (const int num_threads : {1, 2, 3, 4, 8}) {
    ThreadTeam team(num_threads);
    EXPECT_EQ(team.num_threads(), num_threads);
    for (const std::int64_t num_tasks : {0, 1, 2, 3, 7, 8, 9, 64, 1000}) {
      expect_each_task_once(team, num_tasks);
    }
  }
}

TEST(ThreadTeam, RunsManyShortLoopsOneAfterAnother) {
  for (const bool may_spin : {false, true}) {
    for (const int num_threads : {2, 8}) {  // 8: more threads than most test machines have cores
      ThreadTeam team(num_threads, may_spin);
      for (int loop = 0; loop < 500; ++loop) expect_each_task_once(team, 1 + loop % 13);
    }
  }
}

// Task i doesn't need up to four of the tasks before it, and reads what all others have written. Some take long.
TEST(ThreadTeam, ATaskBeginsWhenAllTasksAreDoneThatItNeeds) {
  constexpr std::int64_t kTasks = 120;
  const auto needs = [](std::int64_t i) { return std::max<std::int64_t>(0, i - i * i % 8); };
  for (const bool may_spin : {false, true}) {
    for (const int num_threads : {1, 2, 3, 8}) {
      ThreadTeam team(num_threads, may_spin);
      for (int loop = 0; loop < 5; ++loop) {
        std::vector<std::int64_t> written(kTasks, 0);
        team.parallel_for_after(kTasks, needs, [&](std::int64_t i, int) {
          if (i % 5 == loop) std::this_thread::sleep_for(std::chrono::microseconds(300));
          for (std::int64_t before = 0; before < needs(i); ++before) {
            ASSERT_EQ(written[static_cast<std::size_t>(before)], before + 1)
                << "task " << i << ", " << num_threads << " threads";
          }
          written[static_cast<std::size_t>(i)] = i + 1;
        });
      }
    }
  }
}

// Threads that begin together look at the next task at the same moment.
TEST(ThreadTeam, ThreadsThatWaitForTheSameTaskDontWaitForOneAnother) {
  for (const std::int64_t first_tasks : {1, 6}) {
    for (const bool may_spin : {false, true}) {
      ThreadTeam team(8, may_spin);
      std::atomic<std::int64_t> done{0};
      const auto needs = [&](std::int64_t i) { return std::min(i, first_tasks); };
      for (int loop = 0; loop < 300; ++loop) {
        team.parallel_for_after(16, needs, [&](std::int64_t, int) { ++done; });
      }
      EXPECT_EQ(done, 300 * 16);
    }
  }
}

TEST(ThreadTeam, EveryTaskIsDoneWhenALoopReturns) {
  ThreadTeam team(4);
  std::vector<std::int64_t> values(257, 0);
  for (int loop = 0; loop < 100; ++loop) {
    // Each loop reads what others wrote in the loop before.
    const std::vector<std::int64_t> before = values;
    team.parallel_for(257, [&](std::int64_t i, int) {
      values[static_cast<std::size_t>(i)] = before[static_cast<std::size_t>((i + 1) % 257)] + 1;
    });
    for (const std::int64_t value : values) ASSERT_EQ(value, loop + 1);
  }
}

TEST(ThreadTeam, SeveralTeamsDoNotDisturbOneAnother) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([] {
      ThreadTeam team(3);
      for (int loop = 0; loop < 100; ++loop) expect_each_task_once(team, 17);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(ThreadTeam, CanBeBuiltAndDestroyedWithoutALoop) {
  for (int i = 0; i < 50; ++i) ThreadTeam team(4, i % 2 == 0);
}

TEST(ThreadTeam, ALoopOfATeamOfOneRunsOnTheCaller) {
  ThreadTeam team(1);
  const std::thread::id caller = std::this_thread::get_id();
  std::int64_t next = 0;
  team.parallel_for(5, [&](std::int64_t i, int thread) {
    EXPECT_EQ(i, next++);
    EXPECT_EQ(thread, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
  EXPECT_EQ(next, 5);
}

TEST(ThreadTeam, ALogHasEachTaskOfEachLoopWithItsThreadAndWhatItWaitedFor) {
  for (const int num_threads : {1, 3}) {
    ThreadTeam team(num_threads);
    LoopLog log;
    team.log_to(&log);
    log.name("first");
    expect_each_task_once(team, 40);
    log.name("second");
    const auto needs = [](std::int64_t i) { return i / 2; };
    std::vector<int> threads(20);
    team.parallel_for_after(20, needs, [&](std::int64_t i, int thread) {
      threads[static_cast<std::size_t>(i)] = thread;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    });
    log.name("short");
    for (const std::int64_t tasks : {0, 1}) expect_each_task_once(team, tasks);
    team.log_to(nullptr);
    expect_each_task_once(team, 5);

    ASSERT_EQ(log.loops().size(), 4u);
    EXPECT_EQ(log.loops()[2].tasks.size(), 0u);
    EXPECT_EQ(log.loops()[3].tasks.size(), 1u);
    EXPECT_EQ(log.loops()[0].name, "first");
    EXPECT_EQ(log.loops()[0].tasks.size(), 40u);
    const LoopLog::Loop& loop = log.loops()[1];
    EXPECT_EQ(loop.name, "second");
    ASSERT_EQ(loop.tasks.size(), 20u);
    for (std::size_t i = 0; i < loop.tasks.size(); ++i) {
      const LoopLog::Task& task = loop.tasks[i];
      EXPECT_LE(loop.begin, task.taken);
      EXPECT_LE(task.taken, task.begin);
      EXPECT_LE(task.begin + std::chrono::microseconds(100), task.end);
      EXPECT_LE(task.end, loop.end);
      EXPECT_EQ(task.needs, needs(static_cast<std::int64_t>(i)));
      EXPECT_EQ(task.thread, threads[i]);
      for (std::int64_t earlier = 0; earlier < task.needs; ++earlier) {
        EXPECT_LE(loop.tasks[static_cast<std::size_t>(earlier)].end, task.begin);
      }
    }
  }
}

TEST(ThreadTeam, ALogOfTasksOneByOneHasThoseOfAllThreadsOnTheCaller) {
  ThreadTeam team(8);
  LoopLog log;
  team.log_to(&log, true);
  const std::thread::id caller = std::this_thread::get_id();
  std::int64_t next = 0;
  team.parallel_for_after(
      team.num_threads() * 3, [](std::int64_t i) { return i; },
      [&](std::int64_t i, int thread) {
        EXPECT_EQ(i, next++);
        EXPECT_EQ(thread, 0);
        EXPECT_EQ(std::this_thread::get_id(), caller);
      });
  team.log_to(nullptr);
  EXPECT_EQ(next, 24);
  EXPECT_EQ(log.loops()[0].tasks.size(), 24u);
  EXPECT_EQ(log.loops()[0].tasks[23].needs, 23);
}

// The threads that did start have to end, too: a thread that is left joinable ends the process.
TEST(ThreadTeam, AThreadThatTheMachineRefusesIsAnErrorInASentence) {
  for (const int allowed : {0, 3}) {
    EXPECT_EXIT(
        {
          test::allow_threads(allowed);
          try {
            ThreadTeam team(64);
          } catch (const TrainingError& error) {
            std::fputs(error.what(), stderr);
            std::_Exit(error.exit_code());
          }
        },
        testing::ExitedWithCode(5),
        "refused a thread for computing \\([0-9]+ of 64\\): .*ulimit -u");
  }
}

}  // namespace
}  // namespace sherd
