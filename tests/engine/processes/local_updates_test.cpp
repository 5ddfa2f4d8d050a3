// Replicas that train apart in processes of their own: as on threads, and after one was killed.
#include <signal.h>

#include "tests/engine/processes/mpi_runs.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

using LocalUpdatesInProcesses = ProcessesTest;

TrainingRun apart() {
  return two_replicas("adamw", "diloco: {sync_every: 4, num_fragments: 2, fragment_sync_delay: 1}");
}

TEST_F(LocalUpdatesInProcesses, HaveTheBitsOfThreadsAlsoAfterAReplicaWasKilled) {
  write_data(folder_);
  train_in(folder_, "threads", apart());
  const auto whole = train_in_processes(folder_, "processes", apart(), {2, 1}, kOneShard);
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_EQ(numbers_of(folder_, "processes"), numbers_of(folder_, "threads"));
  EXPECT_EQ(final_state(folder_, "processes"), final_state(folder_, "threads"));

  train_until_killed(folder_, "killed", apart(), {2, 1}, kOneShard);
  const auto again = train_in_processes(folder_, "killed", apart(), {2, 1}, kOneShard);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(final_state(folder_, "killed"), final_state(folder_, "threads"));
}

}  // namespace
}  // namespace sherd::testing
