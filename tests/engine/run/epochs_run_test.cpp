// Runs that are counted in epochs: how many steps they take, what the last one is, and how they go on.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"
#include "engine/launch/device.h"
#include "engine/run/run.h"
#include "engine/run/show_data.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {
namespace {

// One file of 81 tokens, of which an epoch is max(80 / 8 - 1, 1) = 9 windows of 8.
class EpochsRun : public ::testing::Test {
 protected:
  EpochsRun() {
    std::string text;
    for (int i = 0; i < 81; ++i) text += static_cast<char>('a' + i * i % 23);
    folder_.write("text", text);
  }

  engine::ResolvedRecipe recipe(const std::string& output, const std::string& training,
                                int ranks = 1, const std::string& more = "") const {
    std::ostringstream text;
    text << "run: {output_dir: " << folder_.file(output) << "}\n"
         << "model: {num_layers: 1, hidden_size: 16, num_attention_heads: 2, vocab_size: 256}\n"
         << "data: {path: " << folder_.file("text") << ", validation_fraction: 0}\n"
         << "training: {seq_length: 8, micro_batch_size: 1, " << training << "}\n"
         << "zero_optimization: {stage: 2}\n"
         << "lr_scheduler: {warmup_ratio: 0.5}\n"
         << (more.empty() ? "checkpoint: {interval: 2}\n" : more);
    return engine::resolve_recipe(
        {.path = "mine.yaml", .text = text.str(), .sets = sets_, .ranks = ranks});
  }

  std::string train(const std::string& output, const std::string& training, int ranks = 1,
                    const std::string& more = "") const {
    ::testing::internal::CaptureStdout();
    engine::train(recipe(output, training, ranks, more), engine::cpu_machine());
    return ::testing::internal::GetCapturedStdout();
  }

  std::vector<nlohmann::json> steps_of(const std::string& output) const {
    std::istringstream lines(folder_.read(output + "/metrics.jsonl"));
    std::vector<nlohmann::json> steps;
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line);
      if (!json.contains("loss")) continue;
      steps.push_back({json["step"], json["loss"], json["grad_norm"], json["lr"], json["tokens"]});
    }
    return steps;
  }

  test::TempFolder folder_;
  std::vector<std::string> sets_;
};

TEST_F(EpochsRun, TakeTheStepsThatTheirSequencesFillTheLastOneInPart) {
  const std::string said = train("run", "global_batch_size: 4, num_epochs: 2");
  EXPECT_NE(said.find("2 epochs of 9 sequences: 5 steps of 4, the last one of 2\n"),
            std::string::npos)
      << said;
  const auto steps = steps_of("run");
  ASSERT_EQ(steps.size(), 5u);
  EXPECT_EQ(steps[3][4], 4 * 4 * 8);
  EXPECT_EQ(steps[4][4], 18 * 8) << "tokens";
  const std::string written = folder_.read("run/recipe.yaml");
  EXPECT_NE(written.find("  max_steps: 5 "), std::string::npos);
  EXPECT_NE(written.find("  warmup_steps: 3 "), std::string::npos) << "half of them, up to a whole";
}

// A step of 12 sequences has 9 of them; a step of 9 has the same ones in the same order.
TEST_F(EpochsRun, AShortStepIsTheStepOfItsSequencesAlone) {
  train("short", "global_batch_size: 12, num_epochs: 1");
  train("whole", "global_batch_size: 9, max_steps: 1");
  EXPECT_EQ(steps_of("short"), steps_of("whole"));
}

TEST_F(EpochsRun, GoOnOnOtherRanksWithTheSameBitsAndWithMoreEpochs) {
  train("whole", "global_batch_size: 4, num_epochs: 3");
  train("cut", "global_batch_size: 4, max_steps: 3", 4);
  const std::string said = train("cut", "global_batch_size: 4, num_epochs: 3", 2);
  EXPECT_NE(said.find("training.num_epochs: 3 (checkpoint: 0)"), std::string::npos) << said;
  const auto steps = steps_of("whole"), cut = steps_of("cut");
  ASSERT_EQ(steps.size(), 7u) << "27 sequences";
  ASSERT_EQ(cut.size(), 7u);
  for (std::size_t i : {0, 1, 2}) EXPECT_EQ(cut[i][1] == steps[i][1], i == 0) << "another warm-up";
  train("again", "global_batch_size: 4, num_epochs: 3", 4);
  EXPECT_EQ(steps_of("again"), steps);
  EXPECT_EQ(train("again", "global_batch_size: 4, num_epochs: 4").find("this run is finished"),
            std::string::npos);
  EXPECT_EQ(steps_of("again").size(), 9u);
}

TEST_F(EpochsRun, AnotherNumberOfStepsAndOtherDataAreRefused) {
  const auto refused = [&](const std::string& training) {
    return test::error_text<UsageError>([&] { train("run", training); });
  };
  EXPECT_NE(
      refused("global_batch_size: 4, num_epochs: 2, max_steps: 6")
          .find("training.num_epochs 2 is 5 steps of these data, but training.max_steps is 6"),
      std::string::npos);
  ::testing::internal::GetCapturedStdout();
  train("run", "global_batch_size: 4, num_epochs: 2");
  folder_.write("text", folder_.read("text") + "more, which is other data");
  EXPECT_NE(refused("global_batch_size: 4, num_epochs: 2").find("data (fingerprint)"),
            std::string::npos);
  ::testing::internal::GetCapturedStdout();
}

// With a rate of 0 a step's loss is a function of its data alone. Steps 0 to 4 have two epochs, the
// last one half of a batch; what follows is the third epoch's.
TEST_F(EpochsRun, ARunThatSkipsDataTakesTheNextEpochsInstead) {
  sets_ = {"run.seed=5"};  // another batch than the first is the worst
  const std::string still = "optimizer: {lr: 0}\ncheckpoint: {interval: 1, keep_last: 20}\n";
  train("endless", "global_batch_size: 4, max_steps: 12", 1, still);
  train("epochs", "global_batch_size: 4, num_epochs: 2", 1, still);
  std::vector<double> data;  // the losses of steps of data
  for (const auto& step : steps_of("endless")) data.push_back(step[1]);
  data[4] = steps_of("epochs")[4][1];
  const auto losses_of = [&](const std::string& output) {
    std::vector<double> losses;
    for (const auto& step : steps_of(output)) losses.push_back(step[1]);
    return losses;
  };
  const std::vector<double> plain(data.begin(), data.begin() + 5);
  ASSERT_EQ(losses_of("epochs"), plain);
  // One of the first four steps is bad, and perhaps later ones; not the first, before which there is
  // no checkpoint. A bad step of data is dropped, unless it is the run's last.
  std::vector<double> first(data.begin(), data.begin() + 4);
  std::ranges::sort(first);
  const double limit = first[2];
  ASSERT_LE(data[0], limit);
  std::vector<double> expected;
  for (std::size_t next = 0; expected.size() < 5; ++next) {
    if (data.at(next) <= limit || expected.size() == 4) expected.push_back(data[next]);
  }
  const std::string bad =
      still +
      fmt::format("bad_steps: {{max_loss: {:.17g}, rewind_after: 1, max_rewinds: 9}}\n", limit);
  const std::string said = train("skips", "global_batch_size: 4, num_epochs: 2", 1, bad);
  EXPECT_NE(said.find("without its next 1 steps of data"), std::string::npos) << said;
  EXPECT_EQ(losses_of("skips"), expected);
  for (int ranks : {4, 2, 1}) train("ranks", "global_batch_size: 4, num_epochs: 2", ranks, bad);
  EXPECT_EQ(losses_of("ranks"), expected);
}

TEST_F(EpochsRun, AreCountedByTheDataCommandWhicheverIsGiven) {
  const auto shown = [&](const std::string& training) {
    return engine::shown_data(recipe("run", training), {.samples = 0});
  };
  EXPECT_NE(
      shown("global_batch_size: 3, num_epochs: 2").find("2 epochs of 9 sequences: 6 steps of 3\n"),
      std::string::npos);
  EXPECT_NE(shown("global_batch_size: 4, max_steps: 5").find("5 steps of 4: 2.22 epochs of 9 seq"),
            std::string::npos);
}

}  // namespace
}  // namespace sherd::testing
