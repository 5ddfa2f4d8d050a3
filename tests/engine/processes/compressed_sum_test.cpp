// Replicas in processes of their own that add compressed gradients: as on threads, and after one was
// killed.
#include <signal.h>

#include "tests/engine/processes/mpi_runs.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

using CompressedSumsInProcesses = ProcessesTest;

const std::string kLowRank = "powersgd: {rank: 2, start_step: 1, min_compression_rate: 1}";
const std::string kDecoupled = "dion, dion_decoupled: true, dion_average_interval: 2";
const std::string kNoClip = "gradient_clipping: {max_norm: 0}";

TEST_F(CompressedSumsInProcesses, HaveTheBitsOfThreads) {
  write_data(folder_);
  int number = 0;
  for (const auto& [optimizer, keys] :
       {std::pair(std::string("adamw"), kLowRank),
        std::pair(std::string("sgd"), std::string("dgc: {compress_ratio: 0.05, clip: norm}")),
        std::pair(kDecoupled, kNoClip)}) {
    const std::string threads = fmt::format("threads_{}", number),
                      processes = fmt::format("processes_{}", number++);
    train_in(folder_, threads, two_replicas(optimizer, keys));
    const auto outcome =
        train_in_processes(folder_, processes, two_replicas(optimizer, keys), {2, 1}, kOneShard);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(numbers_of(folder_, processes), numbers_of(folder_, threads)) << keys;
    EXPECT_EQ(final_state(folder_, processes), final_state(folder_, threads)) << keys;
  }
}

TEST_F(CompressedSumsInProcesses, LoseNothingIfAReplicaIsKilled) {
  write_data(folder_);
  int number = 0;
  for (const TrainingRun& run :
       {two_replicas("adamw", kLowRank), two_replicas(kDecoupled, kNoClip)}) {
    const std::string whole = fmt::format("whole_{}", number),
                      killed = fmt::format("killed_{}", number++);
    train_in(folder_, whole, run);
    train_until_killed(folder_, killed, run, {2, 1}, kOneShard);
    const auto again = train_in_processes(folder_, killed, run, {2, 1}, kOneShard);
    EXPECT_EQ(again.exit_code, 0) << again.err;
    EXPECT_EQ(final_state(folder_, killed), final_state(folder_, whole));
  }
}

}  // namespace
}  // namespace sherd::testing
