#include "core/awake_time.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace sherd {
namespace {

using std::chrono::milliseconds;
using Clock = AwakeTime::Clock;

TEST(AwakeTime, CountsLooksThatAreFarApartAsAStop) {
  AwakeTime awake(milliseconds(50));
  EXPECT_EQ(awake.stopped(), Clock::duration::zero());
  std::this_thread::sleep_for(milliseconds(80));
  EXPECT_GE(awake.stopped(), milliseconds(80));
  EXPECT_EQ(awake.stopped(), Clock::duration::zero());
}

TEST(AwakeTime, AWaitEndsInTimeOrWhenItIsDone) {
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_lock lock(mutex);
  EXPECT_TRUE(wait_awake(changed, lock, milliseconds(0), [] { return true; }));
  const auto begin = Clock::now();
  EXPECT_FALSE(wait_awake(changed, lock, milliseconds(300), [] { return false; }));
  EXPECT_GE(Clock::now() - begin, milliseconds(300));
}

TEST(AwakeTime, AWaitGoesOnAfterItsProcessWasStopped) {
  int to_parent[2];
  ASSERT_EQ(::pipe(to_parent), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::mutex mutex;
    std::condition_variable changed;
    std::unique_lock lock(mutex);
    const auto begin = Clock::now();
    [[maybe_unused]] const auto written = ::write(to_parent[1], "x", 1);
    const bool done = wait_awake(changed, lock, milliseconds(1000), [] { return false; });
    // What is left of the second is waited for after the stop.
    ::_exit(!done && Clock::now() - begin >= milliseconds(2300) ? 0 : 1);
  }
  char one = 0;
  ASSERT_EQ(::read(to_parent[0], &one, 1), 1);
  ::kill(child, SIGSTOP);
  std::this_thread::sleep_for(milliseconds(1800));
  ::kill(child, SIGCONT);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  ::close(to_parent[0]);
  ::close(to_parent[1]);
}

}  // namespace
}  // namespace sherd
