// nanoGPT's CPU run reproduced (its README: validation loss 1.88 over 20 random batches). Over the
// whole split a PyTorch replica measures 1.914, 1.913 and 1.922 for three seeds; here three seeds
// must each reach 1.93 and average 1.92, on one rank at stage 0 and on two at stage 3. Each takes
// minutes.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tests/support/runs/program.h"
#include "tests/support/values/temp_folder.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

const std::string kText = std::string(SHERD_SOURCE_DIR) + "/../shared/data/tinyshakespeare.txt";

struct ValidationLoss {
  double whole_split = 0.0;
  double estimate = 0.0;  // over 20 random batches, as nanoGPT's is
};

ValidationLoss train_nanogpt(int seed, int ranks, int stage,
                             const std::vector<std::string>& extra = {}) {
  const test::TempFolder folder;
  std::vector<std::string> arguments = {
      "train", std::string(SHERD_SOURCE_DIR) + "/recipes/shakespeare_char_cpu.yaml", "--ranks",
      std::to_string(ranks)};
  for (const std::string& set :
       {"data.path=" + kText, "run.output_dir=" + folder.path(), "run.seed=" + std::to_string(seed),
        "zero_optimization.stage=" + std::to_string(stage),
        std::string("training.eval_interval=0")}) {
    arguments.insert(arguments.end(), {"--set", set});
  }
  arguments.insert(arguments.end(), extra.begin(), extra.end());
  const test::ProgramOutcome outcome = test::run_program(SHERD_PROGRAM, arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;

  ValidationLoss loss;
  std::ifstream metrics(folder.file("metrics.jsonl"));
  for (std::string line; std::getline(metrics, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    if (!json.contains("val_loss")) continue;
    EXPECT_EQ(json.at("num_tokens"), 111'488) << "1,742 windows of 64: the whole split";
    loss = {json.at("val_loss"), json.at("val_loss_20_batches")};
  }
  EXPECT_GT(loss.whole_split, 0.0) << outcome.out;
  std::cout << "seed " << seed << ", " << ranks << " rank(s), stage " << stage << ": "
            << loss.whole_split << " (20-batch estimate " << loss.estimate << ")\n";
  return loss;
}

bool has_text() {
  return std::filesystem::exists(kText);
}

void expect_the_published_loss(int ranks, int stage) {
  double sum = 0.0;
  for (const int seed : {1337, 1338, 1339}) {
    const ValidationLoss loss = train_nanogpt(seed, ranks, stage);
    EXPECT_LE(loss.whole_split, 1.93) << "seed " << seed;
    sum += loss.whole_split;
  }
  EXPECT_LE(sum / 3, 1.92);
}

// Twenty steps of it: the loss falls below that of guessing evenly, ln 65 = 4.17, on both cuts
// alike.
TEST(NanoGpt, ItsFirstTwentyStepsLearnTheSameOnOneRankAndOnTwoAtStage3) {
  if (!has_text()) GTEST_SKIP() << kText << " isn't there: tinyshakespeare, 1,115,394 characters";
  const std::vector<std::string> short_run = {"--set", "training.max_steps=20",
                                              "--set", "lr_scheduler.warmup_steps=5",
                                              "--set", "training.sample_tokens=0"};
  const ValidationLoss one = train_nanogpt(1337, 1, 0, short_run);
  EXPECT_LT(one.whole_split, 3.5);
  EXPECT_NEAR(train_nanogpt(1337, 2, 3, short_run).whole_split, one.whole_split, 1e-4);
}

TEST(NanoGptSlow, ReachesThePublishedLossOnOneRankAtStage0) {
  if (!has_text()) GTEST_SKIP() << kText << " isn't there: tinyshakespeare, 1,115,394 characters";
  expect_the_published_loss(1, 0);
}

TEST(NanoGptSlow, ReachesThePublishedLossOnTwoRanksAtStage3) {
  if (!has_text()) GTEST_SKIP() << kText << " isn't there: tinyshakespeare, 1,115,394 characters";
  expect_the_published_loss(2, 3);
}

}  // namespace
}  // namespace sherd::testing
