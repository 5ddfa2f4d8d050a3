// Parameter servers in processes: the bits of threads, and what happens when a server or a worker is
// lost.
#include <signal.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/engine/processes/mpi_runs.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

class ServersInProcesses : public ProcessesTest {
 protected:
  static TrainingRun run(int stage, const std::string& mesh) {
    return {.stage = stage,
            .world = 2,
            .precision = "mixed_precision: {param_dtype: bf16}",
            .optimizer = "adamw",
            .accumulation = "micro_batch_size: 1",
            .interval = 1,
            .checkpoint = "keep_last: 100",
            .mesh = mesh,
            .zero = "grad_sync: every_micro_step"};
  }
  // Two workers and as many servers as make up the processes.
  std::vector<std::string> words(const std::string& output, int stage, int processes) const {
    TrainingRun workers = run(stage, "");
    workers.world = 2;
    folder_.write(output + ".yaml", recipe_text(folder_, output, workers));
    return {"launch",
            "-n",
            std::to_string(processes),
            "--servers",
            std::to_string(processes - 2),
            "--",
            "train",
            folder_.file(output + ".yaml")};
  }
};

TEST_F(ServersInProcesses, HaveTheBitsOfThreadsAndOfARunWithoutServers) {
  train_in(folder_, "without", run(1, ""));
  for (const auto& [stage, servers] : {std::pair(1, 1), {3, 2}}) {
    const std::string output = fmt::format("served.{}", stage);
    const auto outcome = test::run_program(SHERD_PROGRAM, words(output, stage, 2 + servers));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(numbers_of(folder_, output), numbers_of(folder_, "without"));
    EXPECT_EQ(final_state(folder_, output), final_state(folder_, "without"));
  }
}

TEST_F(ServersInProcesses, AreCountedOnce) {
  std::vector<std::string> words = this->words("twice", 1, 3);
  words.insert(words.end(), {"--set", "parallelism.parameter_servers=2"});
  const auto outcome = test::run_program(SHERD_PROGRAM, words);
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.err,
            "sherd: --servers sets parallelism.parameter_servers; leave out the --set.\n");
}

// At MPI's door, as `sherd plan` says of both kinds of rank.
TEST_F(ServersInProcesses, SendWhatIsPlanned) {
  for (const int stage : {2, 3}) {
    const std::string output = fmt::format("sent.{}", stage);
    std::vector<std::string> words = this->words(output, stage, 4);
    words.insert(words.end(),
                 {"--set", "metrics.log_interval=1", "--set", "checkpoint.interval=0"});
    const auto plan = test::run_program(
        SHERD_PROGRAM, {"plan", folder_.file(output + ".yaml"), "--json", "--set",
                        "parallelism.parameter_servers=2", "--set", "checkpoint.interval=0"});
    ASSERT_EQ(plan.exit_code, 0) << plan.err;
    const auto planned = nlohmann::json::parse(plan.out);
    const std::int64_t all = 2 * planned["sent_bytes"].get<std::int64_t>() +
                             2 * planned["parameter_servers"]["sent_bytes"].get<std::int64_t>();
    const auto outcome = test::run_program(SHERD_PROGRAM, words);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    std::istringstream lines(folder_.read(output + "/metrics.jsonl"));
    int steps = 0;
    for (std::string text; std::getline(lines, text);) {
      const auto line = nlohmann::json::parse(text);
      if (!line.contains("sent_bytes") || line["step"] == 1) continue;  // with what begins a run
      ++steps;
      EXPECT_EQ(line["sent_bytes"]["within_machines"].get<std::int64_t>() +
                    line["sent_bytes"]["to_other_machines"].get<std::int64_t>(),
                all)
          << text;
    }
    EXPECT_EQ(steps, kSteps - 1);
  }
}

TEST_F(ServersInProcesses, EndWithTheNameOfALostRankAndLoseNothing) {
  train_in(folder_, "whole", run(2, ""));
  for (const auto& [lost, name] : {std::pair(2, "server"), {1, "worker"}}) {
    SCOPED_TRACE(name);
    std::vector<std::string> words = this->words(name, 2, 3);
    words.insert(words.end(), {"--set", "metrics.log_interval=1", "--set", "run.peer_timeout=5"});
    bool killed = false;
    const auto outcome =
        test::run_program(SHERD_PROGRAM, words, [&](pid_t, const std::string& line) {
          if (killed || !line.starts_with("step 3/")) return;
          killed = true;
          ::kill(process_of_world(lost, folder_.file(fmt::format("{}.yaml", name))), SIGKILL);
        });
    EXPECT_TRUE(killed) << outcome.out << outcome.err;
    EXPECT_NE(outcome.exit_code, 0);
    const std::string said = fmt::format("sherd: rank {} on ", lost);  // mpirun may speak first
    EXPECT_NE(outcome.err.find(said), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("ended without a word"), std::string::npos) << outcome.err;
    const auto again = test::run_program(SHERD_PROGRAM, this->words(name, 2, 3));
    EXPECT_EQ(again.exit_code, 0) << again.err;
    EXPECT_EQ(final_state(folder_, name), final_state(folder_, "whole"));
  }
}

TEST_F(ServersInProcesses, NeedAProcessThatComputes) {
  const auto outcome = test::run_program(
      SHERD_PROGRAM, {"launch", "-n", "2", "--servers", "2", "--", "train", "none.yaml"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.err,
            "sherd: --servers is 2, of 2 processes (-n); at least one must be left to compute.\n");
}

}  // namespace
}  // namespace sherd::testing
