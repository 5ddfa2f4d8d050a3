// Commands that read a model, in several processes as in one: for a model that is larger than one machine's memory.

#include <algorithm>

#include "tests/engine/processes/mpi_runs.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

class CommandsInProcesses : public ProcessesTest {
 protected:
  void SetUp() override {
    ProcessesTest::SetUp();
    const TrainingRun run{.stage = 3,
                          .precision = "mixed_precision: {param_dtype: f32}\n",
                          .optimizer = "adamw",
                          .accumulation = "micro_batch_size: 3"};
    write_data(folder_);
    train_in(folder_, "run", run);
  }

  // What a command prints alone, and in `processes`.
  void expect_equal(std::vector<std::string> words, int processes) const {
    const auto alone = test::run_program(SHERD_PROGRAM, words);
    EXPECT_EQ(alone.exit_code, 0) << alone.err;
    words.insert(words.begin(), {"launch", "-n", std::to_string(processes), "--"});
    const auto together = test::run_program(SHERD_PROGRAM, words);
    EXPECT_EQ(together.exit_code, 0) << together.err;
    EXPECT_FALSE(alone.out.empty());
    EXPECT_EQ(together.out, alone.out);
  }
};

TEST_F(CommandsInProcesses, PrintWhatOneProcessPrints) {
  const std::string run = folder_.file("run");
  expect_equal({"eval", run, "--json"}, 2);
  expect_equal({"sample", run, "--prompt", "a", "--tokens", "20", "--seed", "3"}, 2);
  folder_.write("questions.jsonl",
                "{\"context\": \"ab\", \"continuation\": \"ba\"}\n{\"text\": \"abab\"}\n");
  expect_equal({"score", run, "--questions", folder_.file("questions.jsonl")}, 3);
}

TEST_F(CommandsInProcesses, RefuseWhatTheFirstAloneHasAndModelsThatArentShared) {
  const auto error = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"launch", "-n", "2", "--"});
    const auto outcome = test::run_program(SHERD_PROGRAM, words);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    return outcome.err;
  };
  const std::string run = folder_.file("run");
  EXPECT_NE(error({"score", run}).find("only the first of several processes has standard input"),
            std::string::npos);
  EXPECT_NE(
      error({"sample", run, "--set", "zero_optimization.stage=1"}).find("ranks share one model"),
      std::string::npos);
}

}  // namespace
}  // namespace sherd::testing
