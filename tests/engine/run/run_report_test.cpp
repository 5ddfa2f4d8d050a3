// Runs side by side, from folders that are written here by hand.
#include "engine/run/run_report.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <regex>

#include "core/error.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {
namespace {

using engine::read_runs;
using engine::ReportedRun;
using Strings = std::vector<std::string>;

class RunReport : public ::testing::Test {
 protected:
  RunReport() {
    write("runs/a", 4.0, "optimizer: {lr: 0.001}\nrun: {name: a}\n");
    write("runs/b", 3.0, "optimizer: {lr: 0.002}\nrun: {name: b}\n");
    write("runs/<c>", 2.0, "");
  }
  void write(const std::string& run, double loss, const std::string& recipe) const {
    std::string lines = "{\"metrics_version\":2}\n";
    for (int step = 1; step <= 3; ++step) {
      lines += fmt::format(
          "{{\"step\":{0},\"loss\":{1},\"grad_norm\":1,\"lr\":0.001,\"tokens\":{0}00,"
          "\"tokens_per_s\":{2},\"exposed_comm_ms\":2.5,\"peak_bytes\":{{\"total\":2097152}}}}\n",
          step, loss - step * 0.5, 1000 * step);
    }
    lines += fmt::format("{{\"step\":2,\"val_loss\":{},\"num_tokens\":9}}\n", loss);
    folder_.write(run + "/metrics.jsonl", lines);
    if (!recipe.empty()) folder_.write(run + "/recipe.yaml", recipe);
  }
  std::vector<ReportedRun> runs(const Strings& names) const {
    Strings folders;
    for (const std::string& name : names) folders.push_back(folder_.file(name));
    return read_runs(folders);
  }

  test::TempFolder folder_;
};

TEST_F(RunReport, ReadsRunsInTheOrderGivenEachOnceAndThoseInAFolder) {
  const auto found = runs({"runs/b", "runs/a", "runs/b"});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].summary.folder, folder_.file("runs/b"));
  EXPECT_EQ(runs({"runs"}).size(), 3u);
  folder_.write("empty/x", "");
  EXPECT_EQ(test::error_text<UsageError>([&] { runs({"empty"}); }),
            folder_.file("empty") + ": contains no run, directly or one level below.");
  folder_.write("begun/recipe.yaml", "run: {name: begun}\n");
  EXPECT_NE(test::error_text<DataError>([&] { runs({"begun"}); }).find("metrics.jsonl: "),
            std::string::npos);
}

TEST_F(RunReport, SaysKeysInWhichRecipesDifferButNotNamesOfRuns) {
  const auto found = runs({"runs/a", "runs/b", "runs/<c>"});
  const auto differences = engine::recipe_differences(found);
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].key, "optimizer.lr");
  EXPECT_EQ(differences[0].values, (Strings{"0.001", "0.002", ""}));
  EXPECT_TRUE(engine::recipe_differences(runs({"runs/a", "runs/<c>"})).empty())
      << "one that doesn't say isn't different";
}

TEST_F(RunReport, ATableHasLastLossBestValidationAndMedians) {
  const std::string text = engine::report_text(runs({"runs/a"}));
  EXPECT_TRUE(std::regex_search(
      text,
      std::regex("stopped +3 +2\\.5000 +4\\.0000 at 2 +2\\.00k +2\\.5 ms +- +- +2\\.0 MiB\n")))
      << text;
  EXPECT_NE(engine::report_text(runs({"runs/a", "runs/b"})).find("optimizer.lr: 0.001 | 0.002\n"),
            std::string::npos);
}

TEST_F(RunReport, SaysWhichRankWasSlow) {
  folder_.write("slow/metrics.jsonl",
                "{\"metrics_version\":2}\n{\"step\":1,\"loss\":4,\"tokens_per_s\":8,"
                "\"slowest_rank\":1,\"slowest_rank_ms\":80,\"median_rank_ms\":40}\n");
  const std::string line =
      "rank 1 was the slowest in 1 of 1 steps, at the median 2.00 times the median rank";
  EXPECT_NE(engine::report_text(runs({"slow"})).find(line), std::string::npos);
  EXPECT_NE(engine::report_page(runs({"slow"})).find(line), std::string::npos);
}

TEST_F(RunReport, ShowsWhatStepsWaitedForData) {
  folder_.write("data/metrics.jsonl",
                "{\"metrics_version\":2}\n{\"step\":1,\"tokens_per_s\":8,\"data_wait_ms\":1}\n"
                "{\"step\":2,\"tokens_per_s\":8,\"data_wait_ms\":6}\n");
  EXPECT_NE(engine::report_text(runs({"data"})).find("  3.5 ms  "), std::string::npos)
      << engine::report_text(runs({"data"}));
  EXPECT_NE(engine::report_page(runs({"data"})).find("<h2>Waiting for data</h2>"),
            std::string::npos);
  EXPECT_EQ(engine::report_page(runs({"runs/a"})).find("Waiting for data"), std::string::npos)
      << "an older run";
}

TEST_F(RunReport, DrawsStepsThatWerentAppliedAndRewinds) {
  folder_.write("bad/metrics.jsonl",
                "{\"metrics_version\":2}\n{\"step\":1,\"loss\":4,\"tokens_per_s\":8}\n"
                "{\"step\":2,\"loss\":9,\"tokens_per_s\":8,\"bad_step\":\"loss\"}\n"
                "{\"step\":4,\"loss\":4,\"tokens_per_s\":8}\n"
                "{\"step\":3,\"rewound_from\":4}\n");
  const std::string page = engine::report_page(runs({"bad"}));
  EXPECT_NE(page.find("class=\"mark\" style=\"stroke:var(--run-0)\" d=\"M500.0 284V300M750.0 "
                      "284V300\""),
            std::string::npos)
      << page;
  EXPECT_NE(page.find("strokes below: steps not applied, and ends of rewinds"), std::string::npos);
  EXPECT_EQ(engine::report_page(runs({"runs/a"})).find("class=\"mark\""), std::string::npos);
}

TEST_F(RunReport, DrawsTheMainValidationSetOnce) {
  folder_.write("sets/metrics.jsonl",
                "{\"metrics_version\":2}\n{\"step\":1,\"loss\":4,\"tokens_per_s\":8}\n"
                "{\"step\":1,\"val_loss\":3,\"val_loss/news\":2,\"val_loss/code\":3,"
                "\"bits_per_byte\":5,\"bits_per_byte/news\":6,\"bits_per_byte/code\":5}\n");
  const std::string page = engine::report_page(runs({"sets"}));
  for (const char* title : {"Validation loss of news", "Validation loss of code",
                            "Bits per byte of news", "Bits per byte of code"}) {
    const std::string heading = fmt::format("<h2>{}</h2>", title);
    EXPECT_NE(page.find(heading), std::string::npos) << title;
    EXPECT_EQ(page.find(heading), page.rfind(heading)) << title;
  }
  EXPECT_EQ(page.find("<h2>Validation loss</h2>"), std::string::npos);
  EXPECT_EQ(page.find("<h2>Bits per byte</h2>"), std::string::npos);
}

TEST_F(RunReport, GoodputIsOverAllStartsOfARun) {
  folder_.write("twice/metrics.jsonl",
                "{\"metrics_version\":2}\n{\"step\":1,\"loss\":2,\"tokens_per_s\":1}\n"
                "{\"step\":1,\"goodput\":0.5,\"moved_s\":5,\"wall_s\":10,\"repeated_steps\":0}\n"
                "{\"step\":2,\"loss\":2,\"tokens_per_s\":1}\n"
                "{\"step\":2,\"goodput\":0.7,\"moved_s\":21,\"wall_s\":30,\"repeated_steps\":0}\n");
  EXPECT_NE(engine::report_text(runs({"twice"})).find("  65.0 %  "), std::string::npos);
}

TEST_F(RunReport, SaysWhatHasNoNumberAndWhatWasTrainedAgain) {
  folder_.write("odd/metrics.jsonl",
                "{\"metrics_version\":2}\n{\"step\":1,\"loss\":2,\"tokens_per_s\":1}\n"
                "{\"step\":1,\"loss\":null,\"tokens_per_s\":1}\n");
  const std::string text = engine::report_text(runs({"odd"}));
  EXPECT_NE(text.find("odd: 1 step without a finite loss\n"), std::string::npos) << text;
  EXPECT_NE(text.find("odd: 1 step trained again after a restart; the last values are shown\n"),
            std::string::npos);
}

TEST_F(RunReport, APageHasACurveOfEachRunAndNeedsNothingElse) {
  const std::string page = engine::report_page(runs({"runs/a", "runs/b", "runs/<c>"}));
  const auto count = [&](const std::string& text) {
    int found = 0;
    for (std::size_t at = 0; (at = page.find(text, at)) != std::string::npos; ++at) ++found;
    return found;
  };
  for (const char* title : {"Loss", "Validation loss", "Gradient norm", "Learning rate",
                            "Tokens per second", "Exposed communication", "Memory of rank 0"}) {
    EXPECT_EQ(count(fmt::format("<h2>{}</h2>", title)), 1) << title;
  }
  for (const int run : {0, 1, 2}) EXPECT_EQ(count(fmt::format("data-run=\"{}\"", run)), 7);
  for (const char* foreign : {"<script", "http", "src=", "@import", "url(", "<c>"}) {
    EXPECT_EQ(count(foreign), 0) << foreign;
  }
  EXPECT_EQ(count("<td>optimizer.lr</td><td class=\"given\">0.001</td>"), 1);
}

}  // namespace
}  // namespace sherd::testing
