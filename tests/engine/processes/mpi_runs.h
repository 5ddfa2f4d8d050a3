/// Runs of the program in several processes, started by mpirun, for tests that compare or end them.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "tests/support/runs/program.h"
#include "tests/support/runs/small_run.h"

namespace sherd::testing {

/// "2x1": two processes of one rank each.
struct ProcessWorld {
  int num_processes = 2, ranks_per_process = 1;
  int ranks() const { return num_processes * ranks_per_process; }
  std::string name() const {
    return std::to_string(num_processes) + "x" + std::to_string(ranks_per_process);
  }
};

/// Skips the test where the program has no MPI.
class ProcessesTest : public ::testing::Test {
 protected:
  void SetUp() override;
  test::TempFolder folder_;
};

/// A run of two replicas, which saves after every step and keeps all of it.
TrainingRun two_replicas(const std::string& optimizer, const std::string& more, int stage = 1);
/// Words with which two processes are two replicas of one rank.
inline const std::vector<std::string> kOneShard = {"--set",
                                                   "parallelism.data_parallel_shard_degree=1"};

/// What `train_in` does, in processes. `run.world` doesn't matter.
test::ProgramOutcome train_in_processes(const test::TempFolder& folder, const std::string& output,
                                        TrainingRun run, const ProcessWorld& world,
                                        const std::vector<std::string>& more = {});
/// The words after the program's name that do so.
std::vector<std::string> launch_words(const test::TempFolder& folder, const std::string& output,
                                      TrainingRun run, const ProcessWorld& world);

/// The same, with process 1 killed after step 3; the run must fail then.
void train_until_killed(const test::TempFolder& folder, const std::string& output,
                        const TrainingRun& run, const ProcessWorld& world,
                        const std::vector<std::string>& more);

/// The living process `number` of a world whose command line has `word`; -1: there is none.
pid_t process_of_world(int number, const std::string& word);
/// The command line of a process; "" if it has gone.
std::string command_line(pid_t process);
/// How many processes have `word` in their command line, this one excepted.
int count_processes(const std::string& word);

}  // namespace sherd::testing
