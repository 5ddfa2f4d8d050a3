// Hooks and saves on demand, as a user and a scheduler see them.
#include <signal.h>

#include <filesystem>

#include "tests/engine/main/train_cli_support.h"

namespace sherd::engine {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

class HooksCliTest : public TrainCliTest {
 protected:
  /// Sends `signal` when the line of step 3 is printed.
  test::ProgramOutcome train_until(int signal, const std::string& name, Strings sets) const {
    for (const char* set : {"metrics.log_interval=1", "training.eval_interval=0",
                            "training.max_steps=400", "training.sample_tokens=0"}) {
      sets.emplace_back(set);
    }
    Strings words = {"--ranks", "2"};
    for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
    return train(name, words, [signal](pid_t program, const std::string& line) {
      if (line.starts_with("step 3/")) ::kill(program, signal);
    });
  }
  static void expect_part(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
};

TEST_F(HooksCliTest, Sigusr2SavesOnceOnTwoRanksAndTheNumbersStay) {
  const test::ProgramOutcome plain = train_until(0, "plain", {});
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  const test::ProgramOutcome outcome = train_until(SIGUSR2, "run", {});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  expect_part(outcome.out, "\nSIGUSR2: saving after step ");
  EXPECT_EQ(column("run", "saved").size(), 2u) << "that one, and the last";
  EXPECT_LT(column("run", "saved").front(), 400.0);
  EXPECT_EQ(column("run", "loss"), column("plain", "loss"));
}

TEST_F(HooksCliTest, AfterAStopSignalTheRunWaitsForItsUpload) {
  const test::ProgramOutcome outcome =
      train_until(SIGTERM, "run",
                  {"hooks.on_save=sleep 0.3; echo $SHERD_STEP > " + folder_.file("uploaded"),
                   "hooks.on_end=echo $SHERD_EXIT_CODE > " + folder_.file("end")});
  EXPECT_EQ(outcome.exit_code, 75) << outcome.err;
  EXPECT_EQ(lines_of(outcome.err).size(), 1u) << outcome.err;
  EXPECT_EQ(std::stod(folder_.read("uploaded")), column("run", "loss").size());
  EXPECT_EQ(folder_.read("end"), "75\n");
}

TEST_F(HooksCliTest, AnUploadThatTakesLongerThanTheStopDeadlineIsKilledAndDoneByTheNextStart) {
  const test::ProgramOutcome outcome =
      train_until(SIGTERM, "run", {"hooks.on_save=sleep 1000", "checkpoint.stop_deadline=3"});
  EXPECT_EQ(outcome.exit_code, 75) << outcome.err;
  EXPECT_TRUE(outcome.err.starts_with("sherd: SIGTERM after step ")) << outcome.err;
  expect_part(outcome.out, " was killed, since the run has to end");
  const test::ProgramOutcome next =
      train_until(0, "run", {"hooks.on_save=echo $SHERD_STEP >> " + folder_.file("uploaded")});
  ASSERT_EQ(next.exit_code, 0) << next.err;
  const double stopped = column("run", "saved").front();
  EXPECT_EQ(folder_.read("uploaded"), fmt::format("{}\n400\n", stopped));
}

TEST_F(HooksCliTest, AHookThatHangsCostsItsTimeoutAndTheRunSucceeds) {
  const test::ProgramOutcome outcome =
      train("run", {"--set", "hooks.on_start=sleep 1000", "--set", "hooks.timeout=1", "--set",
                    "hooks.on_end=touch " + folder_.file("end")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  expect_part(outcome.out,
              "warning: hooks.on_start at step 0 was killed after 1 s (hooks.timeout)");
  EXPECT_TRUE(fs::exists(folder_.file("end")));
  EXPECT_EQ(column("run", "loss").size(), static_cast<std::size_t>(kSteps));
}

}  // namespace
}  // namespace sherd::engine
