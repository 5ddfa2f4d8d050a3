// Processes that disagree, die, stop or are asked to stop: the others end and say why, and no
// process is left.
#include <signal.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/engine/processes/mpi_runs.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

TrainingRun endless() {
  return {.stage = 3,
          .world = 1,
          .precision = "",
          .optimizer = "adamw",
          .accumulation = "gradient_accumulation_steps: 1",
          .interval = 0};
}

class Failures : public ProcessesTest {
 protected:
  // Two processes, one for each command of a shell. (mpirun takes several commands itself, but that of Open MPI 5.0.7
  // ends with a segmentation fault then.)
  test::ProgramOutcome mpirun(const std::string& first, const std::string& second) {
    folder_.write("processes.sh", "case $OMPI_COMM_WORLD_RANK in\n0) " + first + " ;;\n1) " +
                                      second + " ;;\nesac\n");
    return test::run_program(
        "/usr/bin/env",
        {"mpirun", "--oversubscribe", "--mca", "orte_execute_quiet", "1", "--mca", "btl", "^tcp",
         "--allow-run-as-root", "-n", "2", "sh", folder_.file("processes.sh")});
  }
  // Trains a.yaml, in a folder.
  std::string train(const std::string& more = "", const std::string& in = "") {
    return fmt::format("cd '{}' && exec '{}' train '{}' {}", folder_.file(in), SHERD_PROGRAM,
                       folder_.file("a.yaml"), more);
  }
  // Calls `act` with the processes of a world of three once it trains.
  test::ProgramOutcome act_on(const std::function<void(const std::vector<pid_t>&)>& act,
                              const std::vector<std::string>& sets = {}) {
    std::vector<std::string> words = launch_words(folder_, "run", endless(), {3, 1});
    for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
    words.insert(words.end(), {"--set", "training.max_steps=1000000", "--set", "run.peer_timeout=2",
                               "--set", "metrics.log_interval=1"});
    bool acted = false;
    const auto outcome =
        test::run_program(SHERD_PROGRAM, words, [&](pid_t launcher, const std::string& line) {
          if (acted || !line.starts_with("step 2/")) return;
          acted = true;
          launcher_ = launcher;
          std::vector<pid_t> processes;
          for (int number = 0; number < 3; ++number) {
            processes.push_back(process_of_world(number, folder_.file("run.yaml")));
          }
          began_ = std::chrono::steady_clock::now();
          act(processes);
        });
    EXPECT_TRUE(acted) << outcome.out << outcome.err;
    return outcome;
  }
  void expect_nobody_is_left() {
    // mpirun has returned; what it has killed may not have been reaped yet.
    for (int i = 0; i < 3000 && count_processes(folder_.file("run.yaml")) > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(count_processes(folder_.file("run.yaml")), 0);
  }
  void expect_line(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }

  pid_t launcher_ = -1;
  std::chrono::steady_clock::time_point began_;
};

TEST_F(Failures, RanksThatCannotBeSharedEvenlyAreAnErrorOfOneLine) {
  const auto outcome = train_in_processes(folder_, "run", endless(), {2, 1}, {"--ranks", "3"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(
      outcome.err,
      "sherd: mpirun started 2 processes, and the recipe has 3 ranks: each process has as many "
      "ranks as the others. Write --ranks 2, or another multiple of 2.\n");
}

TEST_F(Failures, ByDefaultProcessesHaveAsFewRanksAsTheOtherDegreesAllow) {
  for (const auto& [processes, ranks] : {std::pair(4, 4), {3, 6}}) {
    std::vector<std::string> words = launch_words(folder_, "run", endless(), {processes, 1});
    std::string recipe = folder_.read("run.yaml");
    const std::string degree = fmt::format("data_parallel_shard_degree: {}", processes);
    const std::size_t at = recipe.find(degree);
    ASSERT_NE(at, std::string::npos) << recipe;
    folder_.write("run.yaml", recipe.replace(at, degree.size(), "tensor_parallel_degree: 2"));
    words.insert(words.end(), {"--set", "training.max_steps=1", "--set", "checkpoint.resume=auto"});
    const auto outcome = test::run_program(SHERD_PROGRAM, words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    expect_line(outcome.out, fmt::format("{} ranks in {} processes", ranks, processes));
    std::filesystem::remove_all(folder_.file("run"));
  }
}

TEST_F(Failures, ARecipeThatIsntThereIsSaidOnce) {
  const auto outcome =
      test::run_program(SHERD_PROGRAM, {"launch", "-n", "3", "--", "train", "none.yaml"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.err, "sherd: none.yaml: can't read the recipe: No such file or directory.\n");
}

TEST_F(Failures, TheFirstValueOnWhichProcessesDisagreeIsNamedBeforeStep0) {
  TrainingRun run = endless();
  run.world = 2;
  folder_.write("a.yaml", recipe_text(folder_, "run", run));
  const auto outcome = mpirun(train(), train("--set optimizer.lr=0.02"));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(
      outcome.err.starts_with("sherd: ranks don't agree before step 0: optimizer.lr is 0.01 "
                              "on process 0 on "))
      << outcome.err;
  expect_line(outcome.err, "0.02 on process 1 on ");
  EXPECT_EQ(outcome.out, "");
}

TEST_F(Failures, DataThatDiffersIsNamedBeforeStep0) {
  TrainingRun run = endless();
  run.world = 2;
  folder_.write("other/data.txt", std::string(700, 'a'));
  folder_.write("a.yaml", recipe_text(folder_, "run", run));
  // A folder of the same name with other content, as on two machines: each process sees its own.
  folder_.write("one/data/a.txt", std::string(700, 'a'));
  folder_.write("two/data/a.txt", std::string(700, 'b'));
  const auto outcome =
      mpirun(train("--set data.path=data", "one"), train("--set data.path=data", "two"));
  EXPECT_EQ(outcome.exit_code, 2);
  expect_line(outcome.err, "sherd: ranks don't agree before step 0: the data is ");
}

TEST_F(Failures, AnOutputFolderThatIsntSharedIsAnErrorBeforeStep0) {
  TrainingRun run = endless();
  run.world = 2;
  folder_.write("a.yaml", recipe_text(folder_, "run", run));
  folder_.write("one/there", "");
  folder_.write("two/out/there", "");
  const auto outcome =
      mpirun(train("--set run.output_dir=out", "one"), train("--set run.output_dir=out", "two"));
  EXPECT_EQ(outcome.exit_code, 2);
  expect_line(outcome.err, "sherd: run.output_dir out: process 1 on ");
  expect_line(outcome.err, "Use a folder that all machines share.");
}

// The error is process 1's own, and so is mpirun's exit code.
TEST_F(Failures, AProcessThatThrowsIsNamedWithItsMachine) {
  TrainingRun run = endless();
  run.world = 2;
  folder_.write("a.yaml", recipe_text(folder_, "run", run));
  const auto outcome =
      mpirun(train(), train("--set 'data.validation_path=" + folder_.file("nowhere.txt") + "'"));
  EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
  expect_line(outcome.err, "sherd: process 1 on ");
  expect_line(outcome.err, "nowhere.txt");
}

TEST_F(Failures, AKilledProcessIsNamedAndNobodyIsLeft) {
  for (const int number : {1, 0}) {
    SCOPED_TRACE(number);
    const auto outcome = act_on([&](const auto& processes) {
      ::kill(processes[static_cast<std::size_t>(number)], SIGKILL);
    });
    EXPECT_EQ(outcome.exit_code, 137);  // mpirun's: 128 + SIGKILL
    expect_line(outcome.err, fmt::format("sherd: rank {} on ", number));
    expect_line(outcome.err, "ended without a word: it was killed, or crashed.");
    expect_nobody_is_left();
  }
}

TEST_F(Failures, AStoppedProcessIsNamedAfterTheTimeoutAndNobodyIsLeft) {
  for (const int number : {2, 0}) {
    SCOPED_TRACE(number);
    const auto outcome = act_on([&](const auto& processes) {
      ::kill(processes[static_cast<std::size_t>(number)], SIGSTOP);
    });
    EXPECT_EQ(outcome.exit_code, 4) << outcome.err;
    EXPECT_GE(std::chrono::steady_clock::now() - began_, std::chrono::seconds(2));
    expect_line(outcome.err, fmt::format("rank {}", number));
    expect_nobody_is_left();
    // What the others were doing is on disk.
    std::ifstream file(folder_.file("run/collectives_rank_1.txt"));
    const std::string calls((std::istreambuf_iterator<char>(file)), {});
    expect_line(calls, " running ");
  }
}

// Process 1 is killed at each start. The second and the third start resume from a checkpoint.
TEST_F(Failures, LaunchStartsARunAgainWhoseProcessDiedAsOftenAsItMay) {
  std::vector<std::string> words = launch_words(folder_, "run", endless(), {2, 1});
  words.insert(words.begin() + 1, {"--restarts", "2"});
  words.insert(words.end(),
               {"--set", "training.max_steps=1000000", "--set", "metrics.log_interval=1", "--set",
                "checkpoint.interval=2", "--set", "run.peer_timeout=5"});
  int kills = 0, resumed = 0, lines = 0;  // lines: steps since the last start
  const auto outcome = test::run_program(SHERD_PROGRAM, words, [&](pid_t, const std::string& line) {
    if (line.starts_with("resumed from ")) {
      ++resumed;
      lines = 0;
    }
    if (!line.starts_with("step ") || ++lines != 6) return;
    ++kills;
    ::kill(process_of_world(1, folder_.file("run.yaml")), SIGKILL);
  });
  EXPECT_EQ(kills, 3) << outcome.out;
  EXPECT_EQ(resumed, 2) << outcome.out;
  EXPECT_TRUE(outcome.exit_code == 137 || outcome.exit_code == 4) << outcome.exit_code;
  expect_line(outcome.err, "starting it again (1 of 2).");
  expect_line(outcome.err, "starting it again (2 of 2).");
  EXPECT_EQ(outcome.err.find("(3 of"), std::string::npos) << outcome.err;
  expect_nobody_is_left();
}

// Nothing that would fail again is started again.
TEST_F(Failures, LaunchDoesntStartAWrongRecipeAgain) {
  std::vector<std::string> words = launch_words(folder_, "run", endless(), {2, 1});
  words.insert(words.begin() + 1, {"--restarts", "2"});
  words.insert(words.end(), {"--set", "training.seq_lenght=8"});
  const auto outcome = test::run_program(SHERD_PROGRAM, words);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_EQ(outcome.err.find("starting it again"), std::string::npos) << outcome.err;
}

TEST_F(Failures, ASignalToOneProcessSavesOnAllAndTheRunGoesOn) {
  const auto outcome = act_on([&](const auto& processes) { ::kill(processes[1], SIGTERM); },
                              {"checkpoint.interval=100000"});
  EXPECT_EQ(outcome.exit_code, 75) << outcome.err;
  expect_line(outcome.err, "and the newest checkpoint is of step ");
  expect_nobody_is_left();
}

TEST_F(Failures, ASignalToLaunchSavesOnAll) {
  const auto outcome =
      act_on([&](const auto&) { ::kill(launcher_, SIGTERM); }, {"checkpoint.interval=100000"});
  EXPECT_EQ(outcome.exit_code, 75) << outcome.err;
  expect_line(outcome.err, "and the newest checkpoint is of step ");
  expect_nobody_is_left();
}

TEST_F(Failures, ARunWithoutCheckpointsPromisesNoneWhenItIsStopped) {
  const auto outcome =
      act_on([&](const auto&) { ::kill(launcher_, SIGTERM); }, {"checkpoint.interval=0"});
  expect_line(outcome.err, "and there is no checkpoint");
  EXPECT_EQ(outcome.out.find("saving after step"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.err.find("saving after step"), std::string::npos) << outcome.err;
  expect_nobody_is_left();
}

}  // namespace
}  // namespace sherd::testing
