#include "sharding/processes/join_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <fstream>
#include <future>
#include <thread>

namespace sherd::sharding {
namespace {

using std::chrono::milliseconds;

TEST(JoinWatch, CallsWhereJoiningTakesTooLongAndOnlyThere) {
  std::promise<void> called;
  {
    const JoinWatch watch(milliseconds(1), [&] { called.set_value(); });
    called.get_future().wait();
  }
  const JoinWatch in_time(std::chrono::hours(1), [] { FAIL(); });
  const JoinWatch without({}, {});
}

// A process that waits, with an environment as mpirun makes it. The system shows an empty
// environment for a moment after posix_spawn has returned.
pid_t process_of(const std::string& job, int number) {
  std::string name = "PMIX_NAMESPACE=" + job;
  std::string rank = "OMPI_COMM_WORLD_RANK=" + std::to_string(number);
  char* environment[] = {name.data(), rank.data(), nullptr};
  std::string program = "/bin/sleep", time = "1000";
  char* words[] = {program.data(), time.data(), nullptr};
  pid_t process = 0;
  EXPECT_EQ(::posix_spawn(&process, words[0], nullptr, nullptr, words, environment), 0);
  const std::string shown = "/proc/" + std::to_string(process) + "/environ";
  while (std::ifstream(shown).peek() == std::ifstream::traits_type::eof()) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  return process;
}

TEST(JoinWatch, FindsAJobsProcessesOnThisMachineAndWhichAreStopped) {
  const std::string job = "job of " + std::to_string(::getpid());
  const pid_t running = process_of(job, 0), stopped = process_of(job, 12);
  const pid_t of_another = process_of(job + "x", 1);
  ::kill(stopped, SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(stopped, &status, WUNTRACED), stopped);
  EXPECT_EQ(neighbours(job), (std::vector<Neighbour>{{0, running, false}, {12, stopped, true}}));
  for (const pid_t process : {running, stopped, of_another}) {
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
  }
}

TEST(JoinWatch, TheLowestProcessOfAMachineThatCanSaysWhoIsStopped) {
  const std::vector<Neighbour> of_a = {{0, 11, true}, {1, 12, false}, {2, 13, false}};
  EXPECT_EQ(late_text(1, "a", 60, of_a),
            "process 1 on a waited 60 s for the others to join: process 0 (process id 11 on this "
            "machine) is stopped.");
  EXPECT_EQ(late_text(2, "a", 60, of_a), "");
  EXPECT_EQ(late_text(3, "b", 60, {{3, 11, false}}),
            "process 3 on b waited 60 s for the others to join: none on this machine is stopped, "
            "so another one is slow, or its machine doesn't answer.");
}

}  // namespace
}  // namespace sherd::sharding
