// How runs end, as a user and a scheduler see it: exit code 0 only if everything promised is there,
// and nothing aborts.
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/engine/main/train_cli_support.h"

namespace sherd::engine {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

/// Files of more than 32 KiB can't be written: no shard of this model, but all else.
constexpr const char* kSmallFiles = "ulimit -f 32; exec \"$0\" \"$@\"";

class RunEndTest : public TrainCliTest {
 protected:
  std::string checkpoint(const std::string& name, int step) const {
    return folder_.file(fmt::format("{}/checkpoints/step-{:010}", name, step));
  }
  /// One line on stderr, the program's, that has all `parts`.
  void expect_end(const test::ProgramOutcome& outcome, int exit_code, const Strings& parts) const {
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err << outcome.out;
    EXPECT_TRUE(outcome.err.starts_with("sherd: ")) << outcome.err;
    EXPECT_EQ(lines_of(outcome.err).size(), 1u) << outcome.err;
    for (const std::string& part : parts) {
      EXPECT_NE(outcome.err.find(part), std::string::npos) << part << " in\n" << outcome.err;
    }
  }
};

// ------------------------------------------------------------------------------ saves that fail

TEST_F(RunEndTest, WithoutItsLastCheckpointTheRunEndsWithAnErrorAndNamesTheNewestGoodOne) {
  expect_end(train_by(kSmallFiles, "none"), 3,
             {"the checkpoint of step 6 wasn't saved: ", "(EFBIG)", "there is no good checkpoint"});
  EXPECT_EQ(column("none", "loss").size(), 6u);

  ASSERT_EQ(train("some", {"--set", "training.max_steps=3"}).exit_code, 0);
  expect_end(train_by(kSmallFiles, "some", {"--ranks", "2"}), 3,
             {"the checkpoint of step 6 wasn't saved: ",
              "the newest good checkpoint is " + checkpoint("some", 3)});
  EXPECT_EQ(column("some", "loss").size(), 6u);
}

// 75 would mean: saved, start me again.
TEST_F(RunEndTest, AStopWhoseCheckpointFailsIsNoRequeueAndNoInterrupt) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const std::string name = fmt::format("run{}", signal);
    const test::ProgramOutcome outcome = train_by(
        kSmallFiles, name, {"--set", "metrics.log_interval=1", "--set", "training.max_steps=4000"},
        [signal](pid_t program, const std::string& line) {
          if (line.starts_with("step 3/")) ::kill(program, signal);
        });
    expect_end(outcome, 3, {"wasn't saved: ", "there is no good checkpoint"});
  }
}

TEST_F(RunEndTest, SavesThatFailInARowEndTheRunAfterSoManyAsAreAllowed) {
  const Strings each_step = {"--set", "checkpoint.interval=1", "--set", "checkpoint.async=false"};
  const auto with = [&](const char* setting) {
    Strings all = each_step;
    all.insert(all.end(), {"--set", setting});
    return all;
  };
  expect_end(train_by(kSmallFiles, "default", each_step), 3,
             {"the checkpoint of step 3 wasn't saved", "3 saves in a row have failed",
              "checkpoint.max_failed_saves"});
  EXPECT_EQ(column("default", "loss").size(), 3u);
  expect_end(train_by(kSmallFiles, "one", with("checkpoint.max_failed_saves=1")), 3,
             {"the checkpoint of step 1 wasn't saved"});
  const test::ProgramOutcome any =
      train_by(kSmallFiles, "any", with("checkpoint.max_failed_saves=0"));
  expect_end(any, 3, {"the checkpoint of step 6 wasn't saved"});
  EXPECT_NE(any.out.find("the checkpoint of step 5 wasn't saved"), std::string::npos) << any.out;
  EXPECT_NE(any.out.find("). Training continues."), std::string::npos);
}

TEST_F(RunEndTest, AFolderOfCheckpointsThatSomebodyRemovedIsMadeAgain) {
  const test::ProgramOutcome outcome =
      train("run", {"--set", "metrics.log_interval=1", "--set", "training.max_steps=400"},
            [&](pid_t, const std::string& line) {
              if (line.starts_with("step 3/")) fs::remove_all(folder_.file("run/checkpoints"));
            });
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(fs::exists(checkpoint("run", 400)));
}

TEST_F(RunEndTest, ANameThatNoCheckpointCouldHoldIsRefusedAtTheStart) {
  expect_refused({"--set", "run.name=caf\xe9"}, 2,
                 {"run.name isn't UTF-8", "checkpoint.interval=0"});
  expect_refused({"--set", "checkpoint.init_from=\xff"}, 2, {"checkpoint.init_from isn't UTF-8"});
  EXPECT_EQ(
      train("latin", {"--set", "run.name=caf\xe9", "--set", "checkpoint.interval=0"}).exit_code, 0);
}

TEST_F(RunEndTest, WeightsThatAreNotFiniteAreNoCheckpointAndNoSuccess) {
  const test::ProgramOutcome outcome =
      train("run", {"--set", "optimizer.type=sgd", "--set", "optimizer.lr=1e30", "--set",
                    "optimizer.weight_decay=1e20", "--set", "gradient_clipping.max_norm=0", "--set",
                    "lr_scheduler.type=constant", "--set", "training.max_steps=1"});
  expect_end(outcome, 5,
             {"the checkpoint of step 1 wasn't saved: ", "isn't finite", "param of ",
              "there is no good checkpoint"});
}

// ------------------------------------------------------------------------------ a lost folder

TEST_F(RunEndTest, ARunWhoseFolderIsTakenOverStopsAndLeavesTheOtherAlone) {
  const Strings many = {"--set", "metrics.log_interval=1",   "--set", "training.max_steps=4000",
                        "--set", "training.eval_interval=0", "--set", "checkpoint.interval=5"};
  test::ProgramOutcome second;
  const test::ProgramOutcome first = train("run", many, [&](pid_t, const std::string& line) {
    if (!line.starts_with("step 12/")) return;
    fs::rename(folder_.file("run"), folder_.file("old"));
    second = train("run");
  });
  ASSERT_EQ(second.exit_code, 0) << second.err;
  expect_end(first, 3, {folder_.file("run/.lock"), "this run had it", "writes nothing more"});
  EXPECT_EQ(column("run", "loss").size(), static_cast<std::size_t>(kSteps));
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder_.file("run/checkpoints"))) {
    names.insert(entry.path().filename());
  }
  EXPECT_EQ(names, (std::set<std::string>{"latest", "step-0000000006"}));
}

TEST_F(RunEndTest, ARunWhoseFolderIsRemovedStopsAndSaysSo) {
  const test::ProgramOutcome outcome =
      train("run", {"--set", "metrics.log_interval=1", "--set", "training.max_steps=4000"},
            [&](pid_t, const std::string& line) {
              if (line.starts_with("step 3/")) fs::remove_all(folder_.file("run"));
            });
  expect_end(outcome, 3, {folder_.file("run/.lock"), "removed, renamed or given to another run"});
  EXPECT_FALSE(fs::exists(folder_.file("run")));
}

TEST_F(RunEndTest, MetricsThatSomebodyRemovedGoOnInANewFile) {
  const test::ProgramOutcome outcome =
      train("run", {"--set", "metrics.log_interval=1", "--set", "training.max_steps=400"},
            [&](pid_t, const std::string& line) {
              if (line.starts_with("step 3/")) fs::remove(folder_.file("run/metrics.jsonl"));
            });
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("metrics.jsonl was removed during the run"), std::string::npos);
  const std::vector<double> steps = column("run", "step");
  ASSERT_GT(steps.size(), 1u);
  EXPECT_GE(steps.front(), 3.0) << "the third step's line may come before or after its removal";
  EXPECT_EQ(steps.back(), 400.0);
}

// ------------------------------------------------------------------------------ output

TEST_F(RunEndTest, OutputThatCannotBeWrittenEndsAFinishedRunWithAnError) {
  expect_end(train_by("exec \"$0\" \"$@\" > /dev/full", "run"), 1,
             {"standard output can't be written"});
  EXPECT_EQ(column("run", "loss").size(), static_cast<std::size_t>(kSteps));
  EXPECT_TRUE(fs::exists(checkpoint("run", kSteps)));
}

TEST_F(RunEndTest, AReaderThatIsGoneIsNoReasonToEnd) {
  const test::ProgramOutcome outcome =
      train_by("\"$0\" \"$@\" | head -n 1; exit ${PIPESTATUS[0]}", "run",
               {"--set", "metrics.log_interval=1", "--set", "training.max_steps=400"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(column("run", "loss").size(), 400u);
  EXPECT_TRUE(fs::exists(checkpoint("run", 400)));
}

// The number of a closed stream would be given to the next file that is opened.
TEST_F(RunEndTest, ClosedStreamsAreNotTakenForFiles) {
  const test::ProgramOutcome outcome = train_by("exec \"$0\" \"$@\" <&- >&- 2>&-", "run");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(column("run", "loss").size(), static_cast<std::size_t>(kSteps));
  const test::ProgramOutcome failing =
      train_by("exec \"$0\" \"$@\" <&- >&- 2>&-", "run", {"--set", "run.seed=99"});
  EXPECT_EQ(failing.exit_code, 2);
}

TEST_F(RunEndTest, AnErrorThatCannotBePrintedStillHasItsCode) {
  EXPECT_EQ(
      train_by("exec \"$0\" \"$@\" 2> /dev/full", "run", {"--set", "run.device=gpu"}).exit_code, 2);
}

// ------------------------------------------------------------------------------ links and pipes

TEST_F(RunEndTest, LinksAndPipesInTheOutputFolderAreNeitherFollowedNorWaitedFor) {
  const std::string victim = folder_.write("victim", "untouched");
  for (const char* kind : {"symlink", "hard link", "pipe"}) {
    fs::create_directory(folder_.file("run"));
    for (const char* name : {"recipe.yaml", "memory.json", "metrics.jsonl", "trace.json"}) {
      const std::string beside = folder_.file(fmt::format("run/{}.tmp", name));
      if (kind == std::string("symlink")) fs::create_symlink(victim, beside);
      if (kind == std::string("hard link")) fs::create_hard_link(victim, beside);
      if (kind == std::string("pipe")) {
        ASSERT_EQ(::mkfifo(beside.c_str(), 0600), 0);
      }
    }
    for (int i = 0; i < 2; ++i) {  // a run, and one that finds what it wrote
      const test::ProgramOutcome outcome = train("run", {"--set", "metrics.trace_steps=[2, 3]"});
      EXPECT_EQ(outcome.exit_code, 0) << kind << outcome.err;
    }
    EXPECT_EQ(column("run", "loss").size(), static_cast<std::size_t>(kSteps)) << kind;
    EXPECT_EQ(folder_.read("victim"), "untouched") << kind;
    fs::remove_all(folder_.file("run"));
  }
}

// ------------------------------------------------------------------------------ memory

// From what the program has once its libraries are loaded to what is plenty. The sanitizers map more
// than any limit allows.
#ifndef __SANITIZE_ADDRESS__
#ifndef __SANITIZE_THREAD__
// By hand: where exactly memory runs out depends on the machine.
class RunEndSlow : public RunEndTest {};

TEST_F(RunEndSlow, HoweverLittleMemoryThereIsARunEndsWellOrWithASentence) {
  const Strings four_ranks = {"--ranks", "4", "--set", "zero_optimization.stage=3"};
  std::int64_t loaded_kib = 0;
  train("run", four_ranks, [&](pid_t program, const std::string&) {
    if (loaded_kib > 0) return;
    std::ifstream status(fmt::format("/proc/{}/status", program));
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmSize:")) loaded_kib = std::stoll(line.substr(7));
    }
  });
  ASSERT_GT(loaded_kib, 0);
  int num_ended_well = 0, num_refused = 0;
  for (std::int64_t more = 1; more < (64 << 10) && num_ended_well == 0; more += 1 + more / 8) {
    fs::remove_all(folder_.file("run"));
    const test::ProgramOutcome outcome =
        train_by(fmt::format("ulimit -v {}; exec \"$0\" \"$@\"", loaded_kib + more * 1024), "run",
                 four_ranks);
    num_ended_well += outcome.exit_code == 0;
    if (outcome.exit_code == 0) continue;
    ++num_refused;
    // A file operation that had no memory is an error of that file.
    const bool of_a_file = outcome.err.find(folder_.path()) != std::string::npos;
    EXPECT_EQ(outcome.exit_code, of_a_file ? 3 : 5) << more << " MiB: " << outcome.err;
    EXPECT_EQ(lines_of(outcome.err).size(), 1u) << more << " MiB: " << outcome.err;
  }
  EXPECT_EQ(num_ended_well, 1);
  EXPECT_GT(num_refused, 2);
}
#endif
#endif

}  // namespace
}  // namespace sherd::engine
