// `sherd runs`: what a list of runs says, from the runs' own files.
#include <signal.h>

#include <filesystem>

#include "tests/engine/main/train_cli_support.h"

namespace sherd::engine {
namespace {

class RunsCliTest : public TrainCliTest {
 protected:
  test::ProgramOutcome list(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"runs", folder_.file("runs")};
    words.insert(words.end(), more.begin(), more.end());
    return test::run_program(SHERD_PROGRAM, words);
  }
  /// By folder.
  std::map<std::string, nlohmann::json> listed() const {
    const test::ProgramOutcome outcome = list({"--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::map<std::string, nlohmann::json> runs;
    for (const std::string& line : lines_of(outcome.out)) {
      const nlohmann::json run = nlohmann::json::parse(line);
      runs[std::filesystem::path(run.at("folder").get<std::string>()).filename()] = run;
    }
    return runs;
  }
};

TEST_F(RunsCliTest, AFinishedRunHasItsLastLinesFiguresAndItsNewestCheckpoint) {
  ASSERT_EQ(train("runs/done").exit_code, 0);
  const nlohmann::json run = listed().at("done");
  EXPECT_EQ(run.at("state"), "finished");
  EXPECT_EQ(run.at("step"), kSteps);
  EXPECT_EQ(run.at("max_steps"), kSteps);
  EXPECT_EQ(run.at("checkpoint"), kSteps);
  EXPECT_EQ(run.at("loss"), column("runs/done", "loss").back());
  EXPECT_EQ(run.at("val_loss"), column("runs/done", "val_loss").back());
  EXPECT_EQ(run.at("tokens_per_s"), column("runs/done", "tokens_per_s").back());
}

TEST_F(RunsCliTest, ARunThatStoppedEarlyIsFinished) {
  ASSERT_EQ(train("runs/early", {"--set", "optimizer.lr=0", "--set", "training.eval_interval=1",
                                 "--set", "training.early_stopping_patience=1"})
                .exit_code,
            0);
  EXPECT_EQ(listed().at("early").at("step"), 2);
  EXPECT_EQ(listed().at("early").at("state"), "finished");
}

TEST_F(RunsCliTest, ARunIsRunningWhileItsProcessLivesAndStoppedAfterwards) {
  std::string seen;
  const test::ProgramOutcome outcome =
      train("runs/now", {"--set", "training.max_steps=100000", "--set", "metrics.log_interval=1"},
            [&](pid_t program, const std::string& line) {
              if (!line.starts_with("step 3/") || !seen.empty()) return;
              seen = listed().at("now").at("state");
              ::kill(program, SIGKILL);
            });
  EXPECT_EQ(outcome.exit_code, -1);
  EXPECT_EQ(seen, "running");
  const nlohmann::json run = listed().at("now");
  EXPECT_EQ(run.at("state"), "stopped");
  EXPECT_GE(run.at("step"), 3);
  EXPECT_EQ(run.at("max_steps"), 100000);
  EXPECT_FALSE(run.contains("checkpoint"));
  EXPECT_FALSE(run.contains("val_loss") && run.at("step") < 3);
}

TEST_F(RunsCliTest, TheTableFits80ColumnsAndForeignFilesAreLeftOut) {
  folder_.write("runs/a.txt", "no run");
  folder_.write("runs/other/b.txt", "no run either");
  folder_.write("runs/torn/metrics.jsonl",
                "{\"metrics_version\":2}\n"
                "{\"step\":7,\"loss\":2.5,\"tokens_per_s\":81234.5}\n{\"step\":8,\"lo");
  folder_.write("runs/odd/recipe.yaml", "model: [no recipe\n");
  const std::string folder = folder_.file("runs");
  const test::ProgramOutcome outcome = list();
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<std::string> lines = lines_of(outcome.out);
  ASSERT_EQ(lines.size(), 3u) << outcome.out;
  for (const std::string& line : lines) EXPECT_LE(line.size(), 74 + folder.size()) << line;
  EXPECT_NE(outcome.out.find("2.5000"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("81.2k"), std::string::npos) << outcome.out;
}

TEST_F(RunsCliTest, AFolderThatIsNotThereIsOneLine) {
  const test::ProgramOutcome outcome =
      test::run_program(SHERD_PROGRAM, {"runs", folder_.file("nowhere")});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("nowhere"), std::string::npos) << outcome.err;
  EXPECT_EQ(lines_of(outcome.err).size(), 1u) << outcome.err;
}

TEST_F(RunsCliTest, AReportIsATableAndIfAskedForAPage) {
  ASSERT_EQ(train("runs/done").exit_code, 0);
  const std::string page = folder_.file("page.html");
  const auto report = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all = {"report"};
    all.insert(all.end(), words.begin(), words.end());
    return test::run_program(SHERD_PROGRAM, all);
  };
  const test::ProgramOutcome outcome = report({folder_.file("runs/done"), "--html", page});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(lines_of(outcome.out).size(), 2u) << outcome.out;
  EXPECT_NE(outcome.out.find(fmt::format(" {:.4f} ", column("runs/done", "loss").back())),
            std::string::npos);
  EXPECT_TRUE(folder_.read("page.html").starts_with("<!doctype html>"));
  const test::ProgramOutcome nowhere =
      report({folder_.file("runs"), "--html", folder_.file("none/page.html")});
  EXPECT_EQ(nowhere.exit_code, 2);
  EXPECT_NE(nowhere.err.find("none/page.html: can't be written: No such file"), std::string::npos)
      << nowhere.err;
  EXPECT_EQ(report({folder_.file("none")}).exit_code, 2);
  EXPECT_EQ(report({}).exit_code, 2);
}

}  // namespace
}  // namespace sherd::engine
