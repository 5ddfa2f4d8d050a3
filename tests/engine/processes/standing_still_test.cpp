// Ranks that stop making progress while their process lives, as in an endless computation: the others name them at
// their deadline, and no process is left. And what is written of them when a signal asks the run to end.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/engine/processes/hold.h"
#include "tests/engine/processes/mpi_runs.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

class StandingStill : public ProcessesTest {
 protected:
  static TrainingRun endless(int world) {
    return {.stage = 3,
            .world = world,
            .precision = "",
            .optimizer = "adamw",
            .accumulation = "gradient_accumulation_steps: 1",
            .interval = 0};
  }
  // Runs the program; `act` is called once it trains.
  test::ProgramOutcome run(std::vector<std::string> words, const std::string& timeout,
                           const std::function<void(pid_t program)>& act) {
    words.insert(words.end(), {"--set", "training.max_steps=1000000", "--set",
                               "run.peer_timeout=" + timeout, "--set", "metrics.log_interval=1"});
    bool acted = false;
    const auto outcome =
        test::run_program(SHERD_PROGRAM, words, [&](pid_t program, const std::string& line) {
          if (acted || !line.starts_with("step 2/")) return;
          acted = true;
          began_ = std::chrono::steady_clock::now();
          act(program);
        });
    EXPECT_TRUE(acted) << outcome.out << outcome.err;
    took_ = std::chrono::steady_clock::now() - began_;
    return outcome;
  }
  std::vector<std::string> threads_of_one_process() {
    folder_.write("run.yaml", recipe_text(folder_, "run", endless(2)));
    return {"train", folder_.file("run.yaml")};
  }
  void expect_part(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  std::string calls_of(int rank) {
    const std::string name = fmt::format("run/collectives_rank_{}.txt", rank);
    return std::filesystem::exists(folder_.file(name)) ? folder_.read(name) : "";
  }
  // Of ranks that wait, within a minute.
  std::string written_calls_of(int rank) {
    for (int i = 0; i < 6000 && calls_of(rank).empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return calls_of(rank);
  }

  std::chrono::steady_clock::time_point began_;
  std::chrono::steady_clock::duration took_{};
};

TEST_F(StandingStill, ARankOfAProcessIsNamedByItsPeersWhoEndTheProcess) {
  Hold hold;
  const auto outcome =
      run(threads_of_one_process(), "2", [&](pid_t program) { hold.thread_of(program); });
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_GE(took_, std::chrono::seconds(2));
  expect_part(outcome.err, "sherd: rank 1 waited 2 s for rank 0 in ");
  expect_part(outcome.err,
              "\nsherd: rank 0 didn't come to an end within 5 s of that, and is left as it is.\n");
  expect_part(calls_of(1), " running ");
}

TEST_F(StandingStill, ARankOfAnotherProcessIsNamedAndNobodyIsLeft) {
  Hold hold;
  const auto outcome = run(launch_words(folder_, "run", endless(1), {3, 1}), "2", [&](pid_t) {
    hold.thread_of(process_of_world(1, folder_.file("run.yaml")));
  });
  EXPECT_EQ(outcome.exit_code, 4) << outcome.err;
  expect_part(outcome.err, "for rank 1");
  for (int i = 0; i < 3000 && count_processes(folder_.file("run.yaml")) > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(count_processes(folder_.file("run.yaml")), 0);
}

// Ctrl-Z and fg do this. The first process that continues must not declare the others dead.
TEST_F(StandingStill, ARunThatIsStoppedLongerThanPeersWaitContinues) {
  std::vector<std::string> words = launch_words(folder_, "run", endless(2), {2, 2});
  words.insert(words.end(), {"--set", "checkpoint.interval=100000"});
  const auto outcome = run(words, "4", [&](pid_t program) {
    const std::string recipe = folder_.file("run.yaml");
    const pid_t all[] = {process_of_world(0, recipe), process_of_world(1, recipe)};
    for (const pid_t process : all) ::kill(process, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::seconds(9));
    ::kill(all[1], SIGCONT);
    std::this_thread::sleep_for(std::chrono::seconds(1));
    ::kill(all[0], SIGCONT);
    std::this_thread::sleep_for(std::chrono::seconds(3));
    ::kill(program, SIGTERM);
  });
  EXPECT_EQ(outcome.exit_code, 75) << outcome.err;
}

// Long before any deadline.
TEST_F(StandingStill, ASignalWritesWhatRanksWaitFor) {
  Hold hold;
  std::string calls;
  std::vector<std::string> words = threads_of_one_process();
  words.insert(words.end(), {"--set", "checkpoint.interval=100000"});
  const auto outcome = run(words, "600", [&](pid_t program) {
    hold.thread_of(program);
    ::kill(program, SIGTERM);
    calls = written_calls_of(1);
    ::kill(program, SIGKILL);
  });
  EXPECT_EQ(outcome.exit_code, -1) << outcome.err;
  expect_part(calls, " running ");
}

TEST_F(StandingStill, ARunThatEndsAtASignalLeavesNoSuchFile) {
  std::vector<std::string> words = threads_of_one_process();
  words.insert(words.end(), {"--set", "checkpoint.interval=100000"});
  const auto outcome = run(words, "600", [&](pid_t program) { ::kill(program, SIGTERM); });
  EXPECT_EQ(outcome.exit_code, 75) << outcome.err;
  EXPECT_EQ(calls_of(0) + calls_of(1), "");
}

}  // namespace
}  // namespace sherd::testing
