// A replica that dies at any of its messages: in the exchange of any form, in a gather, in a save's agreement.
// The others name it, and the run goes on from its newest checkpoint as if nothing had been.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>

#include "tests/engine/processes/mpi_runs.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

using KilledAnywhereSlow = ProcessesTest;

constexpr int kMoments = 12;

struct Variables {
  explicit Variables(std::vector<std::pair<std::string, std::string>> values_) : values(values_) {
    for (const auto& [name, value] : values) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const auto& [name, value] : values) ::unsetenv(name.c_str());
  }
  std::vector<std::pair<std::string, std::string>> values;
};

TEST_F(KilledAnywhereSlow, AReplicaLosesNothingInAnyForm) {
  const std::string dion = "dion, dion_decoupled: true, dion_average_interval: 2";
  std::vector<std::string> words = kOneShard;
  words.insert(words.end(), {"--set", "run.peer_timeout=5"});
  int number = 0, killed_in_all = 0;
  for (const TrainingRun& run :
       {two_replicas("adamw", "diloco: {sync_every: 4, num_fragments: 2, fragment_sync_delay: 1}",
                     1),
        two_replicas("adamw", "powersgd: {rank: 2, start_step: 1, min_compression_rate: 1}", 2),
        two_replicas("sgd", "dgc: {compress_ratio: 0.05, clip: norm}", 3),
        two_replicas(dion, "gradient_clipping: {max_norm: 0}", 1)}) {
    const std::string whole = fmt::format("whole_{}", number++), count = folder_.file("count");
    long messages = 0;
    {
      const Variables preloaded(
          {{"LD_PRELOAD", SHERD_KILL_AT_SEND}, {"KILL_AT_SEND_COUNT", count}});
      const auto outcome = train_in_processes(folder_, whole, run, {2, 1}, words);
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
      ASSERT_TRUE(std::ifstream(count) >> messages);
    }
    ASSERT_GT(messages, 100);
    for (int moment = 0; moment < kMoments; ++moment) {
      // Not always at the same place of a step.
      const long last = 1 + (messages - 1) * moment / kMoments + moment * 7 % 5;
      const std::string killed = fmt::format("killed_{}_{}", number, moment);
      {
        const Variables preloaded(
            {{"LD_PRELOAD", SHERD_KILL_AT_SEND}, {"KILL_AT_SEND", std::to_string(last)}});
        const auto outcome = train_in_processes(folder_, killed, run, {2, 1}, words);
        // How many messages there are depends on how often ranks had to wait.
        if (outcome.exit_code == 0) continue;
        const bool named = outcome.err.find("rank 1 on") != std::string::npos ||
                           outcome.err.find("process 1") != std::string::npos;
        EXPECT_TRUE(named) << last << ": " << outcome.err;
        ++killed_in_all;
      }
      const auto again = train_in_processes(folder_, killed, run, {2, 1}, words);
      EXPECT_EQ(again.exit_code, 0) << last << ": " << again.err;
      EXPECT_EQ(final_state(folder_, killed), final_state(folder_, whole)) << last;
    }
  }
  EXPECT_GE(killed_in_all, 4 * kMoments * 2 / 3);
}

}  // namespace
}  // namespace sherd::testing
