// Replicas that train apart in processes of their own: as on threads, and after one was killed.
#include <signal.h>

#include "tests/engine/processes/mpi_runs.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

using LocalUpdatesInProcesses = ProcessesTest;

TrainingRun replicas(int interval) {
  return {.stage = 1,
          .world = 1,
          .precision = "",
          .optimizer = "adamw",
          .accumulation = "micro_batch_size: 1",
          .interval = interval,
          .checkpoint = "keep_last: 100",
          .more = "diloco: {sync_every: 4, num_fragments: 2, fragment_sync_delay: 1}",
          .mesh = "data_parallel_replicate_degree: 2"};
}

// Two processes are two replicas of one rank.
const std::vector<std::string> kSingleShard = {"--set", "parallelism.data_parallel_shard_degree=1"};

TEST_F(LocalUpdatesInProcesses, HaveTheBitsOfThreadsAlsoAfterAReplicaWasKilled) {
  write_data(folder_);
  train_in(folder_, "threads", replicas(1));
  const auto whole = train_in_processes(folder_, "processes", replicas(1), {2, 1}, kSingleShard);
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_EQ(numbers_of(folder_, "processes"), numbers_of(folder_, "threads"));
  EXPECT_EQ(final_state(folder_, "processes"), final_state(folder_, "threads"));

  train_until_killed(folder_, "killed", replicas(1), {2, 1}, kSingleShard);
  const auto again = train_in_processes(folder_, "killed", replicas(1), {2, 1}, kSingleShard);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(final_state(folder_, "killed"), final_state(folder_, "threads"));
}

}  // namespace
}  // namespace sherd::testing
